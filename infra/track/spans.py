"""An attempt, or an evaluation, as a tree of spans with the times that its records give.

    attempt 001                        evaluation step 200
      startup                            export
        load checkpoint                  infer
      train steps 1-50                   score
      validation step 50
      checkpoint step 50               (in the background, beside the steps)
      anomaly: straggler
      detection
      diagnosis

Pure: knows no MLflow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from configs.events import (
    AnomalyEvent,
    CheckpointEvent,
    Event,
    FaultEvent,
    SnapshotEvent,
    StartEvent,
    StepEvent,
    ValidationEvent,
)
from configs.records import Action, AttemptRecord, EvaluationScores, Verdict

MAX_SPANS = 500
"""Children of one root: the last ones, nearest to how it ended, are kept."""

Attributes = dict[str, str | int | float | bool | list[str]]


@dataclass(frozen=True)
class Span:
    """Something that took time. Times are Unix seconds."""

    name: str
    start: float
    end: float
    attributes: Attributes = field(default_factory=dict)
    error: str = ""
    """Why it failed; empty: it did not."""
    children: tuple[Span, ...] = ()


def attempt_span(
    record: AttemptRecord, events: list[Event], verdict: Verdict | None, action: Action | None
) -> Span:
    """An ended attempt, from its submission to the decision about its failure."""
    ended_at = record.ended_at or (events[-1].time if events else record.submitted_at)
    children = [*_startup(record, events, ended_at), *_work(events)]
    if record.outcome == "failed":
        children += _failure(events, ended_at, verdict, action)
    left_out = max(0, len(children) - MAX_SPANS)
    attributes: Attributes = {"job_id": record.job_id, "nodes": record.nodes}
    if left_out:
        attributes["spans_left_out"] = left_out
    if verdict is not None:
        attributes |= {"verdict": verdict.failure_class, "category": verdict.category}
    return Span(
        f"attempt {record.number:03d}",
        record.submitted_at,
        max([ended_at, *(child.end for child in children)]),
        attributes,
        "" if record.outcome in ("completed", "stopped") else _why(record, verdict),
        tuple(children[left_out:]),
    )


def _why(record: AttemptRecord, verdict: Verdict | None) -> str:
    if verdict is not None:
        return f"{verdict.failure_class}: {verdict.root_cause_text or verdict.method}"
    return record.reason or record.outcome or ""


def _startup(record: AttemptRecord, events: list[Event], ended_at: float) -> list[Span]:
    """Queue, imports, building, loading: until training begins, or the attempt ends before that."""
    start = next((event for event in events if isinstance(event, StartEvent)), None)
    if start is None:
        return [Span("startup", record.submitted_at, ended_at, error="ended before training began")]
    loading: tuple[Span, ...] = ()
    if start.loaded_from == "memory":
        begin = max(record.submitted_at, start.time - start.load_time_s)
        loading = (Span("load snapshot", begin, start.time, {"step": start.step}),)
    elif start.checkpoint is not None:
        begin = max(record.submitted_at, start.time - start.load_time_s)
        loading = (Span("load checkpoint", begin, start.time, {"checkpoint": start.checkpoint}),)
    attributes: Attributes = {
        "step": start.step,
        "world_size": start.world_size,
        "device": start.device,
        "precision": start.precision,
        "num_parameters": start.num_parameters,
    }
    return [Span("startup", record.submitted_at, start.time, attributes, children=loading)]


def _work(events: Iterable[Event]) -> list[Span]:
    """Steps, in segments between checkpoints and validations; those; anomalies; injected faults."""
    spans: list[Span] = []
    steps: list[StepEvent] = []
    for event in events:
        if isinstance(event, StepEvent):
            steps.append(event)
            continue
        if isinstance(event, SnapshotEvent):
            continue
        spans += _segment(steps)
        steps = []
        match event:
            case ValidationEvent():
                span = Span(
                    f"validation step {event.step}", event.time - event.duration_s, event.time
                )
                spans.append(replace(span, attributes={"loss": event.loss}))
            case CheckpointEvent():
                span = Span(
                    f"checkpoint step {event.step}", event.time - event.duration_s, event.time
                )
                about: Attributes = {"outcome": event.outcome, "size_bytes": event.size_bytes}
                spans.append(replace(span, attributes=about, error=event.error))
            case AnomalyEvent():
                about = {"step": event.step, "onset_step": event.onset_step, "fatal": event.fatal}
                about |= {"rank": event.rank} if event.rank is not None else {}
                about |= {"node": event.node} if event.node else {}
                error = event.message if event.fatal else ""
                about["message"] = event.message
                name = f"anomaly: {event.kind}"
                spans.append(Span(name, event.time, event.time, about, error))
            case FaultEvent():
                about = {"kind": event.kind, "rank": event.rank}
                spans.append(Span(f"fault before step {event.step}", event.time, event.time, about))
    return spans + _segment(steps)


def _segment(steps: list[StepEvent]) -> list[Span]:
    if not steps:
        return []
    first, last = steps[0], steps[-1]
    attributes: Attributes = {
        "steps": len(steps),
        "last_loss": last.loss,
        "tokens_per_s": sum(step.tokens_per_s for step in steps) / len(steps),
    }
    name = f"train steps {first.step}-{last.step}"
    return [Span(name, first.time - first.step_time_s, last.time, attributes)]


def _failure(
    events: list[Event], ended_at: float, verdict: Verdict | None, action: Action | None
) -> list[Span]:
    """From the last sign of life to the end, and from there to the decision."""
    spans: list[Span] = []
    # A commit in the background is no sign that training lives.
    alive = [e for e in events if not (isinstance(e, CheckpointEvent) and e.is_background)]
    if alive:
        spans.append(Span("detection", min(alive[-1].time, ended_at), ended_at))
    if verdict is not None:
        decided_at = max(action.decided_at, ended_at) if action else ended_at
        attributes: Attributes = {
            "verdict": verdict.failure_class,
            "method": verdict.method,
            "confidence": verdict.confidence,
            "evidence": verdict.evidence,
        }
        if action is not None:
            attributes |= {"action": action.kind, "reason": action.reason}
        spans.append(Span("diagnosis", ended_at, decided_at, attributes))
    return spans


def evaluation_span(scores: EvaluationScores) -> Span:
    """A finished evaluation: its stages one after the other, as long as each took."""
    children: list[Span] = []
    begin = scores.started_at
    for name, duration_s in (
        ("export", scores.export_s),
        ("infer", scores.infer_s),
        ("score", scores.score_s),
    ):
        children.append(Span(name, begin, begin + duration_s))
        begin += duration_s
    attributes: Attributes = {"step": scores.step, "tasks": scores.tasks}
    end = max(scores.ended_at, begin)
    name = f"evaluation step {scores.step}"
    return Span(name, scores.started_at, end, attributes, children=tuple(children))
