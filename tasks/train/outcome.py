"""How an attempt ended, by what its launcher says and what the job itself has left in the run directory.

The job's own word counts more than the launcher's: a job that has done its last step and has committed
it is complete, also when something of it had to be ended afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from configs.errors import EXIT_CONTINUE
from configs.events import EndEvent, StepEvent
from configs.lineage import valid_checkpoints
from configs.rundir import AttemptDir, RunDir

Outcome = Literal["completed", "failed", "cancelled", "stopped"]


@dataclass(frozen=True)
class JobEnd:
    """What the launcher says of a job that has ended."""

    state: str
    exit_code: int | None
    reason: str


def outcome_of(
    run: RunDir, attempt: AttemptDir, job: JobEnd, *, cancelled: str = "", hung: str = ""
) -> tuple[Outcome, str]:
    """Outcome and reason. `cancelled` says why a person wanted the end, `hung` what the monitor saw."""
    end = end_of(attempt)
    if job.state == "COMPLETED" or (end and end.reason == "finished" and is_saved(run, end.step)):
        return "completed", ""
    if cancelled:
        return "cancelled", cancelled
    if end and end.reason == "stopped" and job.exit_code == EXIT_CONTINUE and job.state == "FAILED":
        return "stopped", f"{end.stopped_by} at step {end.step}"
    if hung and job.state == "CANCELLED":
        return "failed", hung
    return "failed", f"{job.state} {job.reason}".strip()


def end_of(attempt: AttemptDir) -> EndEvent | None:
    """The job's own word about its end."""
    return next((e for e in reversed(attempt.events()) if isinstance(e, EndEvent)), None)


def made_steps(attempt: AttemptDir) -> bool:
    """Whether the attempt has got anywhere."""
    return any(isinstance(event, StepEvent) for event in attempt.events())


def saved_step(run: RunDir) -> int:
    """Step of the newest checkpoint that counts, from which training goes on; 0: from the start."""
    return max((marker.step for _, marker in valid_checkpoints(run)), default=0)


def is_saved(run: RunDir, step: int) -> bool:
    """Whether the checkpoint of this step is committed, and counts."""
    return any(marker.step == step for _, marker in valid_checkpoints(run))
