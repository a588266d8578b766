"""The result of a run: what `overland run --json` prints and summary.json keeps."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import ConfigDict, Field

from configs.lineage import lineage_of, valid_checkpoints
from configs.records import ActionKind, EvaluationFailure, Goodput, Record, Verdict
from configs.regressions import EvaluationLeftOut
from configs.rundir import RunDir
from flows.show import words
from flows.show.notices import end_of_attempt
from flows.show.readers import AttemptView
from flows.show.state import RunView, Snapshot


class AttemptSummary(Record):
    """One submission of the training job, how it ended and what was done about it."""

    number: int
    outcome: Literal["completed", "failed", "cancelled", "stopped"] | None
    """None: it had not ended."""
    verdict: str | None = None
    """Failure class."""
    action: ActionKind | None = None
    reason: str = ""
    """Why this action, in one sentence."""
    how: str = ""
    """How it ended, in the launcher's or the signal's words."""
    category: str | None = None
    rank: int | None = None
    node: str | None = None
    root_cause_file: str | None = None
    """Log file, relative to the run directory."""
    root_cause_line: int | None = None
    root_cause_text: str = ""
    start_step: int | None = None
    """The checkpoint's step it started from; None: it never got to train."""
    loaded_from: Literal["nothing", "memory", "storage"] | None = None
    """Where that state was: a snapshot in the node's memory, or a committed checkpoint."""
    last_step: int | None = None
    stop: bool = False
    """The run ended with it."""


class AnomalySummary(Record):
    """Something that went wrong without failing."""

    attempt: int
    step: int
    kind: str
    message: str
    fatal: bool
    rank: int | None = None
    node: str | None = None


class CheckpointSummary(Record):
    """A committed checkpoint."""

    step: int
    path: str
    size_bytes: int
    committed_at: float


class ScoreSummary(Record):
    """One metric of one task for one checkpoint; values that are not finite are null."""

    step: int
    task: str
    metric: str
    value: float | None
    stderr: float | None = None


class UnscoredTask(Record):
    """A task or group that could not be scored; the checkpoint's others were."""

    step: int
    task: str
    reason: str


class RegressionSummary(Record):
    """A checkpoint whose scores are worse than before."""

    step: int
    message: str
    """The worst of it."""
    metrics: list[str]
    """TASK/METRIC of all that has regressed, the worst first."""
    unhealthy: bool
    """Rollbacks and retention pass over it."""
    new: bool
    """False: the checkpoint before had regressed in the same metrics."""


class Failure(Record):
    """Why the run failed."""

    sentence: str
    interrupted: bool = False
    """A person ended it: nothing is wrong, and it can go on."""
    attempt: int | None = None
    verdict: Verdict | None = None


class RunSummary(Record):
    """The whole run, for programs and for the report."""

    model_config = ConfigDict(ser_json_inf_nan="null")

    run_dir: str
    status: Literal["completed", "failed"]
    final_step: int
    final_loss: float | None
    """Loss of the last step that counts."""
    attempts: list[AttemptSummary]
    checkpoints: list[CheckpointSummary]
    evaluations: list[ScoreSummary]
    goodput: Goodput | None
    """None when no training job was started."""
    mlflow_run_id: str | None
    tracking_uri: str | None = None
    failure: Failure | None = None
    evaluation_failures: list[EvaluationFailure] = Field(default_factory=list)
    unscored_tasks: list[UnscoredTask] = Field(default_factory=list)
    evaluations_left_out: list[EvaluationLeftOut] = Field(default_factory=list)
    regressions: list[RegressionSummary] = Field(default_factory=list)
    anomalies: list[AnomalySummary] = Field(default_factory=list)
    goes_on_from: str = ""
    """Where training goes on when the run is started again, in words; empty when it is complete."""
    snapshots: int = 0
    """Copies of the training state that were begun in memory."""
    snapshots_skipped: int = 0


def build_summary(
    run: RunDir,
    *,
    status: Literal["completed", "failed"],
    goodput: Goodput | None,
    mlflow_run_id: str | None,
    tracking_uri: str | None = None,
    failure: str | None = None,
) -> RunSummary:
    """Sum a run up from its run directory. `failure` says why, where no attempt's verdict does."""
    view = RunView(run)
    snapshot = view.refresh()
    start = "" if status == "completed" else _start(run, snapshot, in_memory=view.keeps_snapshots)
    return RunSummary(
        run_dir=str(run.path),
        status=status,
        final_step=snapshot.step,
        final_loss=_finite(snapshot.loss),
        attempts=summarize_attempts(snapshot),
        checkpoints=summarize_checkpoints(snapshot),
        evaluations=summarize_scores(snapshot),
        goodput=goodput,
        mlflow_run_id=mlflow_run_id,
        tracking_uri=words.without_password(tracking_uri) if tracking_uri else None,
        failure=_failure(snapshot, failure, start) if status == "failed" else None,
        evaluation_failures=snapshot.evaluation_failures,
        unscored_tasks=summarize_unscored(snapshot),
        evaluations_left_out=snapshot.evaluations_left_out,
        regressions=summarize_regressions(snapshot),
        anomalies=summarize_anomalies(snapshot),
        goes_on_from=start,
        snapshots=snapshot.snapshots.begun,
        snapshots_skipped=snapshot.snapshots.skipped,
    )


def summarize_attempts(snapshot: Snapshot) -> list[AttemptSummary]:
    """All attempts, in order."""
    return [_summarize_attempt(attempt) for attempt in snapshot.attempts]


def summarize_anomalies(snapshot: Snapshot) -> list[AnomalySummary]:
    """All anomalies, in order."""
    return [
        AnomalySummary(
            attempt=number,
            step=event.step,
            kind=event.kind,
            message=event.message,
            fatal=event.fatal,
            rank=event.rank,
            node=event.node,
        )
        for number, event in snapshot.anomalies
    ]


def summarize_regressions(snapshot: Snapshot) -> list[RegressionSummary]:
    """All checkpoints that have regressed, in order of steps."""
    return [
        RegressionSummary(
            step=report.step,
            message=report.said,
            metrics=[f"{found.task}/{found.metric}" for found in report.regressions],
            unhealthy=report.unhealthy,
            new=report.is_new,
        )
        for report in snapshot.regressions
    ]


def summarize_checkpoints(snapshot: Snapshot) -> list[CheckpointSummary]:
    """All committed checkpoints, in order of steps."""
    return [
        CheckpointSummary(
            step=c.step, path=str(c.path), size_bytes=c.size_bytes, committed_at=c.committed_at
        )
        for c in snapshot.checkpoints
    ]


def summarize_scores(snapshot: Snapshot) -> list[ScoreSummary]:
    """All scores, in order of steps."""
    return [
        ScoreSummary(
            step=evaluation.step,
            task=score.task,
            metric=score.metric,
            value=_finite(score.value),
            stderr=_finite(score.stderr),
        )
        for evaluation in snapshot.scores
        for score in evaluation.scores
    ]


def summarize_unscored(snapshot: Snapshot) -> list[UnscoredTask]:
    """All tasks that could not be scored, in order of steps."""
    return [
        UnscoredTask(step=evaluation.step, task=task, reason=reason)
        for evaluation in snapshot.scores
        for task, reason in evaluation.failed.items()
    ]


def _summarize_attempt(attempt: AttemptView) -> AttemptSummary:
    verdict, action = attempt.verdict, attempt.action
    log = verdict.root_cause_file if verdict else None
    return AttemptSummary(
        number=attempt.number,
        outcome=attempt.record.outcome if attempt.record else None,
        verdict=verdict.failure_class if verdict else None,
        action=action.kind if action else None,
        reason=action.reason if action else "",
        how=end_of_attempt(attempt),
        category=verdict.category if verdict else None,
        rank=verdict.faulty_rank if verdict else None,
        node=verdict.faulty_node if verdict else None,
        root_cause_file=f"attempts/{attempt.number:03d}/{log}" if log else None,
        root_cause_line=verdict.root_cause_line if verdict else None,
        root_cause_text=verdict.root_cause_text if verdict else "",
        start_step=attempt.start.step if attempt.start else None,
        loaded_from=attempt.start.loaded_from if attempt.start else None,
        last_step=attempt.last_step,
        stop=action.stop if action else False,
    )


def _start(run: RunDir, snapshot: Snapshot, *, in_memory: bool) -> str:
    """`step 20`, or a newer snapshot: nobody knows here whether the nodes hold it still."""
    saved = max((marker.step for _, marker in valid_checkpoints(run)), default=0)
    start = f"step {saved:,}" if saved else "the beginning"
    newest = snapshot.snapshots
    if not in_memory or (newest.last_step or 0) <= saved:
        return start
    if lineage_of(run).is_void(attempt=newest.last_attempt, step=newest.last_step or 0):
        return start
    return f"{start}, or from step {newest.last_step:,} if the node's memory holds it still"


def _failure(snapshot: Snapshot, sentence: str | None, start: str) -> Failure:
    last = snapshot.attempt
    if last and (last.cancelled or last.stopped) and sentence is None:
        when = f"after step {snapshot.step:,}" if snapshot.step else "before the first step"
        what = "stopped" if last.stopped else "interrupted"
        text = f"{what} {when}: run the same command again to continue from {start}"
        return Failure(sentence=text, interrupted=True)
    if last is None or not last.failed:
        return Failure(sentence=sentence or "the run ended before it was complete")
    return Failure(sentence=sentence or _sentence(last), attempt=last.number, verdict=last.verdict)


def _sentence(attempt: AttemptView) -> str:
    when = f"after step {attempt.last_step:,}" if attempt.last_step else "before its first step"
    cause = attempt.verdict.failure_class if attempt.verdict else end_of_attempt(attempt)
    text = f"attempt {attempt.number} failed {when}: {cause or 'cause unknown'}"
    return f"{text}; {words.clean(attempt.action.reason)}" if attempt.action else text


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
