"""Real jobs whose checkpoints are saved while they train on, and what survives when they crash."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from training_jobs import STEPS, JobResult, run_training_job

from configs.events import CheckpointEvent, SnapshotEvent, StartEvent
from configs.records import Action
from configs.rundir import RunDir, write_record
from tasks.train.node_memory import rank_folder, run_folder

pytestmark = pytest.mark.slow

NewRun = Callable[[], RunDir]
BACKGROUND: dict[str, Any] = {
    "interval_steps": 3,
    "save_timeout_s": 60,
    "save_attempts": 2,
    "memory": "on",
    "wait_for_commit": False,
}
KILLED_UNSAVED = [
    {"kind": "full_disk", "step": 3},
    {"kind": "kill", "step": 5, "rank": 1},
]
"""Step 3 is in memory when the job dies, and not on storage."""
SLOW_RANKS = [
    {"kind": "slow", "step": 1, "steps": STEPS, "delay_s": 0.7, "rank": 0, "attempt": 1},
]


def start_of(job: JobResult) -> StartEvent:
    return next(e for e in job.attempt.events() if isinstance(e, StartEvent))


def saves_of(job: JobResult) -> dict[int, str]:
    events = job.attempt.events()
    return {e.step: e.outcome for e in events if isinstance(e, CheckpointEvent)}


def assert_same_curve(job: JobResult, expected: JobResult) -> None:
    steps = job.steps()
    assert max(steps) == STEPS
    for number, step in steps.items():
        assert (step.loss, step.grad_norm) == (
            expected.steps()[number].loss,
            expected.steps()[number].grad_norm,
        )
    for number, loss in job.validations().items():
        assert loss == expected.validations()[number]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="replicated", marks=pytest.mark.soak),
        pytest.param(True, id="sharded"),
    ],
)
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Both kinds of optimizer."""
    return {"data": 2, "distributed_optimizer": request.param}


@pytest.fixture(scope="module")
def undisturbed(new_run: NewRun, layout: dict[str, Any]) -> JobResult:
    return run_training_job(new_run(), 1, {"parallel": layout, "checkpoint": BACKGROUND})


def test_saves_in_the_background_are_committed(undisturbed: JobResult) -> None:
    assert undisturbed.exit_code == 0, undisturbed.explain()
    assert saves_of(undisturbed)[STEPS] == "committed"
    snapshots = [e for e in undisturbed.attempt.events() if isinstance(e, SnapshotEvent)]
    assert [s.step for s in snapshots] == [3, 6]
    run = RunDir(undisturbed.attempt.path.parents[1])
    assert not run_folder(run.path).exists(), "a run that is done gives the memory back"
    folder = run.checkpoint(STEPS)
    marker = folder.marker()
    assert marker is not None
    assert {p.name for p in folder.path.iterdir()} == {*marker.files, "COMMITTED.json"}


def test_a_crash_restarts_from_memory_bit_for_bit(
    new_run: NewRun, layout: dict[str, Any], undisturbed: JobResult
) -> None:
    run = new_run()
    killed = run_training_job(
        run, 1, {"parallel": layout, "checkpoint": BACKGROUND, "faults": KILLED_UNSAVED}
    )
    assert killed.exit_code != 0
    assert run.committed_checkpoints() == []
    resumed = run_training_job(run, 2, {"parallel": layout, "checkpoint": BACKGROUND})
    assert resumed.exit_code == 0, resumed.explain()
    start = start_of(resumed)
    assert (start.loaded_from, start.step) == ("memory", 3)
    assert list(resumed.steps()) == [4, 5, 6, 7, 8]
    assert_same_curve(resumed, undisturbed)
    assert saves_of(resumed)[3] == "committed", "what was only in memory is saved after all"


@pytest.mark.soak
def test_a_snapshot_that_one_rank_has_lost_is_not_used(new_run: NewRun) -> None:
    run = new_run()
    killed = run_training_job(run, 1, {"checkpoint": BACKGROUND, "faults": KILLED_UNSAVED})
    assert killed.exit_code != 0
    for header in rank_folder(run.path, 1).glob("*.json"):
        header.unlink()
    resumed = run_training_job(run, 2, {"checkpoint": BACKGROUND})
    assert resumed.exit_code == 0, resumed.explain()
    assert start_of(resumed).loaded_from != "memory", "what storage had by then may be used"


def lose_pages(buffer: Path) -> None:
    """What was copied is gone; the file is as large as before."""
    size_bytes = buffer.stat().st_size
    os.truncate(buffer, 0)
    os.truncate(buffer, size_bytes)


def cut_off(buffer: Path) -> None:
    os.truncate(buffer, buffer.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lose_pages, "the snapshot of step 6 is damaged on ranks [1]: not used"),
        pytest.param(cut_off, "", marks=pytest.mark.soak),
    ],
)
def test_a_damaged_snapshot_is_passed_over_for_an_older_one(
    new_run: NewRun, damage: Callable[[Path], None], said: str
) -> None:
    run, fault = new_run(), {"kind": "kill", "step": 8, "rank": 1}
    run_training_job(run, 1, {"checkpoint": BACKGROUND, "faults": [fault]})
    folder = rank_folder(run.path, 1)
    held = {json.loads(h.read_text())["step"]: h for h in folder.glob("buffer_?.json")}
    assert set(held) == {3, 6}
    damage(held[6].with_suffix(""))
    resumed = run_training_job(run, 2, {"checkpoint": BACKGROUND})
    assert resumed.exit_code == 0, resumed.explain()
    start = start_of(resumed)
    assert (start.loaded_from, start.step) == ("memory", 3)
    assert said in resumed.log(0)


def test_buffers_that_cannot_be_kept_in_memory_end_no_run_that_may_do_without(
    new_run: NewRun,
) -> None:
    run = new_run()
    obstacle = rank_folder(run.path, 0)
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("no folder")
    refused = run_training_job(run, 1, {"checkpoint": BACKGROUND})
    assert refused.exit_code != 0
    assert f"the snapshot buffers cannot be kept in {obstacle}" in refused.log(0)
    job = run_training_job(run, 2, {"checkpoint": {**BACKGROUND, "memory": "auto"}})
    obstacle.unlink()
    assert job.exit_code == 0, job.explain()
    assert "after a crash, training restarts from storage" in job.log(0)


def test_memory_of_an_earlier_run_of_the_same_name_is_not_used(new_run: NewRun) -> None:
    run, fault = new_run(), {"kind": "kill", "step": 5, "rank": 1}
    run_training_job(run, 1, {"checkpoint": BACKGROUND, "faults": [fault]})
    run.attempt(1).token_path.write_text("another run's")
    resumed = run_training_job(run, 2, {"checkpoint": BACKGROUND})
    assert resumed.exit_code == 0, resumed.explain()
    assert start_of(resumed).loaded_from != "memory", "what storage had by then may be used"


@pytest.mark.soak
def test_a_rollback_makes_later_snapshots_void(new_run: NewRun) -> None:
    run, fault = new_run(), {"kind": "kill", "step": 8, "rank": 1}
    run_training_job(run, 1, {"checkpoint": BACKGROUND, "faults": [fault]})
    action = Action(
        kind="rollback_skip_data", stop=False, reason="", rollback_to_step=4, decided_at=0.0
    )
    write_record(run.attempt(1).action_path, action)
    resumed = run_training_job(run, 2, {"checkpoint": BACKGROUND})
    assert resumed.exit_code == 0, resumed.explain()
    start = start_of(resumed)
    assert (start.loaded_from, start.step) == ("memory", 3)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)]
)
def test_a_writer_that_dies_or_stops_costs_no_checkpoint(
    new_run: NewRun, number: signal.Signals
) -> None:
    run = new_run()
    struck: list[int] = []
    striker = threading.Thread(target=strike_writer, args=(run, number, struck))
    striker.start()
    settings = {**BACKGROUND, "save_timeout_s": 4}
    job = run_training_job(run, 1, {"checkpoint": settings, "faults": SLOW_RANKS})
    striker.join()
    assert job.exit_code == 0, job.explain()
    assert struck, "the writer was there to be struck"
    assert saves_of(job) == {3: "committed", 6: "committed", 8: "committed"}
    assert "training goes on" in job.log(0)


@pytest.mark.soak
def test_snapshots_that_find_no_buffer_are_left_out(new_run: NewRun) -> None:
    run = new_run()
    striker = threading.Thread(target=strike_writer, args=(run, signal.SIGSTOP, []))
    striker.start()
    settings = {**BACKGROUND, "interval_steps": 1, "save_timeout_s": 8, "buffers": 1}
    job = run_training_job(run, 1, {"checkpoint": settings, "faults": SLOW_RANKS})
    striker.join()
    assert job.exit_code == 0, job.explain()
    outcomes = {e.step: e.outcome for e in job.attempt.events() if isinstance(e, SnapshotEvent)}
    assert "skipped" in outcomes.values() and "begun" in outcomes.values()
    assert saves_of(job)[STEPS] == "committed"


def test_memory_that_does_not_fit_is_refused_with_numbers(new_run: NewRun) -> None:
    run = new_run()
    job = run_training_job(run, 1, {"checkpoint": {**BACKGROUND, "memory_limit_gib": 1e-4}})
    assert job.exit_code != 0
    assert "more than checkpoint.memory_limit_gib = 0.0001: a limit of" in job.log(0)


def strike_writer(run: RunDir, number: signal.Signals, struck: list[int]) -> None:
    """Send a signal to rank 0's writer once the first snapshot is there."""
    deadline = time.monotonic() + 240
    snapshot = rank_folder(run.path, 0)
    while not list(snapshot.glob("buffer_?.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in psutil.process_iter():
        try:
            parent = process.parent()
            if "tasks.train.writer" in process.cmdline() and parent is not None:
                environment = parent.environ()
                if str(run.path) in parent.cmdline() and environment.get("RANK") == "0":
                    os.kill(process.pid, number)
                    struck.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def test_leftovers_in_memory_are_found_by_run_directory(tmp_path: Path) -> None:
    assert run_folder(tmp_path / "a") != run_folder(tmp_path / "b")
