"""Run-directory records as MLflow metrics, parameters and tags. Pure: knows no MLflow.

Metric names
    attempt runs      loss, grad_norm, learning_rate, tokens_per_s, step_time_s, mfu,
                      snapshot_wait_s, validation_loss, snapshot_blocked_s,
                      checkpoint_time_s (in the background, from snapshot to commit)
    parent run        loss, validation_loss (the effective curve), TASK/METRIC over steps,
                      goodput.*, final_loss
    evaluation runs   TASK/METRIC, TASK/METRIC_stderr, unscored_tasks (how many could not be scored)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from configs.events import CheckpointEvent, Event, SnapshotEvent, StepEvent, ValidationEvent
from configs.records import Action, AttemptRecord, EvaluationScores, Score, Verdict
from infra.track.uris import strip_credentials

MAX_VALUE_LENGTH = 6000
"""MLflow's limit for parameters; tags may be longer, which nobody would read."""

UNSCORED = "unscored_tasks"
_EFFECTIVE = ("loss", "validation_loss")
_STEP_METRICS = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "step_time_s", "mfu")
_WAITS = ("snapshot_wait_s",)
"""Of steps, where there was one: mostly there is none."""
_NOT_IN_NAMES = re.compile(r"[^\w./ -]")


@dataclass(frozen=True)
class Point:
    """One value of one metric."""

    key: str
    value: float
    time: float
    step: int
    model_id: str | None = None

    @property
    def timestamp_ms(self) -> int:
        return milliseconds(self.time)


def milliseconds(time_s: float) -> int:
    """Unix seconds as MLflow's timestamp."""
    return round(time_s * 1000)


def points_of_event(event: Event) -> list[Point]:
    """The metrics in an event, with the event's own time and step."""
    match event:
        case StepEvent():
            values = {key: getattr(event, key) for key in _STEP_METRICS}
            values |= {key: getattr(event, key) or None for key in _WAITS}
        case ValidationEvent():
            values = {"validation_loss": event.loss}
        case SnapshotEvent(outcome="begun"):
            values = {"snapshot_blocked_s": event.blocked_s}
        case CheckpointEvent():
            values = {"checkpoint_time_s": event.duration_s}
        case _:
            values = {}
    return [
        Point(key, value, event.time, event.step)
        for key, value in values.items()
        if value is not None
    ]


def effective_points(points: Iterable[Point], highest_step: dict[str, int]) -> list[Point]:
    """The points that go on with the parent's curve: each step once, the first time it is computed.

    A point in MLflow cannot be replaced. A recomputed step equals its first computation (bit for
    bit on the same hardware), except after `rollback_skip_data`: there the attempts' own runs show
    both courses, and the parent keeps the first for the steps that were rolled back.
    `highest_step` is carried on.
    """
    fresh: list[Point] = []
    for point in points:
        if point.key in _EFFECTIVE and point.step > highest_step.get(point.key, -1):
            highest_step[point.key] = point.step
            fresh.append(point)
    return fresh


def score_name(score: Score) -> str:
    """TASK/METRIC; lm-eval's filter follows when it is not `none`: `acc,none` -> `acc`."""
    metric, _, chosen = score.metric.partition(",")
    name = f"{score.task}/{metric}" + (f"/{chosen}" if chosen not in ("", "none") else "")
    return _NOT_IN_NAMES.sub("_", name)


def score_points(scores: EvaluationScores, model_id: str | None) -> list[Point]:
    """Values and standard errors of an evaluation, tied to the checkpoint's model; how many of its tasks
    have none."""
    points: list[Point] = []
    for score in scores.scores:
        values = {score_name(score): score.value, f"{score_name(score)}_stderr": score.stderr}
        points += [
            Point(key, value, scores.ended_at, scores.step, model_id)
            for key, value in values.items()
            if value is not None
        ]
    unscored = float(len(scores.failed))
    return [*points, Point(UNSCORED, unscored, scores.ended_at, scores.step, model_id)]


def summary_points(summary: Mapping[str, Any], time: float) -> list[Point]:
    """goodput.* and final_loss out of summary.json."""
    goodput = summary.get("goodput")
    parts = goodput.items() if isinstance(goodput, dict) else ()
    values = {f"goodput.{key}": value for key, value in parts}
    values["final_loss"] = summary.get("final_loss")
    step = summary.get("final_step")
    return [
        Point(key, float(value), time, step if isinstance(step, int) else 0)
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


# --- parameters and tags --------------------------------------------------------------------------


def clean(value: object) -> str:
    """A value as MLflow may show it: no credentials, within the limit."""
    return strip_credentials(str(value))[:MAX_VALUE_LENGTH]


def config_params(config: Mapping[str, Any]) -> dict[str, str]:
    """A config as flat parameters: `train.steps` -> `200`; lists as JSON."""
    return {key: clean(value) for key, value in _leaves(config, "")}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, str):
        yield path, value
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def attempt_tags(
    record: AttemptRecord, verdict: Verdict | None, action: Action | None
) -> dict[str, str]:
    """Outcome, verdict and action of an attempt, for search and for the table of runs."""
    values: dict[str, object] = {
        "job_id": record.job_id,
        "nodes": " ".join(record.nodes) or None,
        "outcome": record.outcome,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "reason": record.reason or None,
        "hung": "true" if record.hung else None,
    }
    if verdict is not None:
        values |= {
            "verdict": verdict.failure_class,
            "category": verdict.category,
            "faulty_rank": verdict.faulty_rank,
            "faulty_node": verdict.faulty_node,
            "evidence": verdict.root_cause_text or None,
            "method": verdict.method,
        }
    if action is not None:
        values |= {"action": action.kind, "action_reason": action.reason}
    return {f"overland.{key}": clean(value) for key, value in values.items() if value is not None}
