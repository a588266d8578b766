"""Builds run directories and histories for the recover stage's tests."""

from __future__ import annotations

from pathlib import Path

from configs.events import (
    AnomalyEvent,
    CheckpointEvent,
    EndEvent,
    Event,
    SnapshotEvent,
    StartEvent,
    StepEvent,
    ValidationEvent,
)
from configs.files import append_json_line
from configs.records import Action, ActionKind, AttemptRecord, CommitMarker, Verdict
from configs.rundir import COMMIT_MARKER_NAME, AttemptDir, RunDir, write_record


def verdict(failure_class: str, action: ActionKind, **changes: object) -> Verdict:
    values = {
        "failure_class": failure_class,
        "category": "infrastructure",
        "action": action,
        "confidence": 0.9,
        "method": "test",
    }
    return Verdict.model_validate({**values, **changes})


def action(*, stop: bool = False, wait_s: float = 0.0, decided_at: float = 0.0) -> Action:
    return Action(
        kind="restart_same_nodes", stop=stop, reason="test", wait_s=wait_s, decided_at=decided_at
    )


def start(time: float, step: int = 0) -> StartEvent:
    return StartEvent(
        time=time,
        step=step,
        checkpoint=None,
        world_size=2,
        device="cpu",
        precision="fp32",
        num_parameters=1,
        padded_vocab_size=1,
    )


def step(
    time: float, number: int, duration_s: float, loss: float = 1.0, waited_s: float = 0.0
) -> StepEvent:
    return StepEvent(
        time=time,
        step=number,
        loss=loss,
        grad_norm=1.0,
        learning_rate=0.1,
        step_time_s=duration_s,
        tokens_per_s=1.0,
        snapshot_wait_s=waited_s,
    )


def snapshot(time: float, number: int, blocked_s: float) -> SnapshotEvent:
    return SnapshotEvent(time=time, step=number, outcome="begun", blocked_s=blocked_s)


def save(time: float, number: int, waited_s: float) -> CheckpointEvent:
    """A save that training waited for, from its snapshot to its commit."""
    return CheckpointEvent(
        time=time, step=number, outcome="committed", duration_s=waited_s, waited_s=waited_s
    )


def background_save(time: float, number: int, duration_s: float) -> CheckpointEvent:
    """A save that was committed while training went on."""
    return CheckpointEvent(time=time, step=number, outcome="committed", duration_s=duration_s)


def anomaly(time: float, number: int, *, fatal: bool) -> AnomalyEvent:
    return AnomalyEvent(
        time=time, step=number, kind="loss_spike", onset_step=number, fatal=fatal, message="test"
    )


def validation(time: float, number: int, duration_s: float) -> ValidationEvent:
    return ValidationEvent(time=time, step=number, loss=1.0, duration_s=duration_s)


def end(time: float, number: int, *, stopped: bool = False) -> EndEvent:
    return EndEvent(time=time, step=number, reason="stopped" if stopped else "finished")


def add_attempt(
    run: RunDir,
    number: int,
    submitted_at: float,
    ended_at: float | None,
    events: list[Event],
    *,
    outcome: str | None = "failed",
    decided: Action | None = None,
    found: Verdict | None = None,
) -> AttemptDir:
    """Write an attempt's files as the stages leave them."""
    attempt = run.attempt(number)
    record = AttemptRecord.model_validate(
        {
            "number": number,
            "key": "k",
            "job_id": "j",
            "submitted_at": submitted_at,
            "ended_at": ended_at,
            "outcome": outcome,
            "nodes": ["box"],
        }
    )
    write_record(attempt.record_path, record)
    for event in events:
        append_json_line(attempt.events_path, event.model_dump())
    if decided is not None:
        write_record(attempt.action_path, decided)
    if found is not None:
        write_record(attempt.verdict_path, found)
    return attempt


def add_checkpoint(run: RunDir, number: int, attempt: int) -> None:
    """Write a committed checkpoint's marker."""
    marker = CommitMarker(
        step=number,
        consumed_samples=number,
        model_fingerprint="f",
        padded_vocab_size=1,
        files={},
        attempt=attempt,
        parallel={"tensor": 1, "pipeline": 1, "data": 2},
        committed_at=0.0,
        duration_s=0.0,
    )
    write_record(run.checkpoint(number).path / COMMIT_MARKER_NAME, marker)


def run_dir(path: Path) -> RunDir:
    return RunDir(path / "run")
