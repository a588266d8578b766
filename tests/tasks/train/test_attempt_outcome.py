"""How an attempt counts, by the launcher's word and by what the job has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.events import EndEvent, StepEvent
from configs.files import append_json_line
from configs.records import CommitMarker
from configs.rundir import COMMIT_MARKER_NAME, RunDir, write_record
from tasks.train.outcome import JobEnd, made_steps, outcome_of, saved_step

COMPLETED = JobEnd("COMPLETED", 0, "")
LEFT = JobEnd("FAILED", 75, "")
ENDED = JobEnd("CANCELLED", None, "cancelled")
CRASHED = JobEnd("FAILED", 1, "")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def ends(run: RunDir, reason: str, stopped_by: str = "") -> None:
    event = EndEvent.model_validate(
        {"time": 1.0, "step": 8, "reason": reason, "stopped_by": stopped_by}
    )
    run.attempt(1).path.mkdir(parents=True, exist_ok=True)
    append_json_line(run.attempt(1).events_path, event.model_dump())


def commits(run: RunDir, step: int) -> None:
    marker = CommitMarker(
        step=step, consumed_samples=0, model_fingerprint="", padded_vocab_size=8, files={},
        attempt=1, parallel={}, committed_at=0.0, duration_s=0.0,
    )  # fmt: skip
    write_record(run.checkpoint(step).path / COMMIT_MARKER_NAME, marker)


def test_what_the_launcher_says(run: RunDir) -> None:
    attempt = run.attempt(1)
    assert outcome_of(run, attempt, COMPLETED) == ("completed", "")
    assert outcome_of(run, attempt, CRASHED) == ("failed", "FAILED")
    assert outcome_of(run, attempt, ENDED, cancelled="by me") == ("cancelled", "by me")
    assert outcome_of(run, attempt, ENDED, hung="silent") == ("failed", "silent")
    assert outcome_of(run, attempt, CRASHED, hung="silent") == ("failed", "FAILED")


def test_asked_to_stop_and_saved(run: RunDir) -> None:
    ends(run, "stopped", "SIGUSR1")
    commits(run, 8)
    attempt = run.attempt(1)
    assert outcome_of(run, attempt, LEFT) == ("stopped", "SIGUSR1 at step 8")
    assert outcome_of(run, attempt, CRASHED)[0] == "failed"
    # A person has cancelled it: the save is what the next start continues from.
    saved = JobEnd("CANCELLED", 75, "cancelled")
    assert outcome_of(run, attempt, saved, cancelled="Ctrl-C") == ("cancelled", "Ctrl-C")
    assert saved_step(run) == 8


def test_the_exit_code_alone_is_not_believed(run: RunDir) -> None:
    assert outcome_of(run, run.attempt(1), LEFT)[0] == "failed"


@pytest.mark.parametrize("job", [CRASHED, ENDED, JobEnd("NODE_FAIL", None, "gone")])
def test_done_and_committed_is_complete_however_it_ended(run: RunDir, job: JobEnd) -> None:
    ends(run, "finished")
    assert outcome_of(run, run.attempt(1), job, hung="silent")[0] == "failed"
    commits(run, 8)
    assert outcome_of(run, run.attempt(1), job, hung="silent") == ("completed", "")
    assert outcome_of(run, run.attempt(1), job, cancelled="Ctrl-C") == ("completed", "")


def test_steps_made(run: RunDir) -> None:
    ends(run, "stopped")
    assert not made_steps(run.attempt(1))
    step = StepEvent(
        time=1.0, step=1, loss=1.0, grad_norm=1.0, learning_rate=1.0, step_time_s=1.0,
        tokens_per_s=1.0,
    )  # fmt: skip
    append_json_line(run.attempt(1).events_path, step.model_dump())
    assert made_steps(run.attempt(1))
