"""Watching jobs that save and leave, or have done so and do not end; real ranks that train nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.logging import disable_run_logger

from configs.records import AttemptRecord
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RunConfig
from infra.launch.base import JobHandle, JobSpec
from infra.launch.local import LocalLauncher
from tasks.train.task import begin_attempt, idle_stops, stopped_by, watch_attempt

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

# Steps, then what the first argument says; rank 0 tells of it.
RANK = """
    import os, sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from configs.events import EndEvent, StepEvent
    from configs.files import append_json_line
    from configs.records import CommitMarker
    from configs.rundir import COMMIT_MARKER_NAME, RunDir, write_record
    from tasks.train.progress import Progress
    run, rank = RunDir(Path(sys.argv[3])), int(os.environ["RANK"])
    progress = Progress.open(rank)
    def tell(event):
        if rank == 0:
            append_json_line(run.attempt(1).events_path, event.model_dump())
    def commit(step):
        marker = CommitMarker(step=step, consumed_samples=0, model_fingerprint="", files={},
            padded_vocab_size=8, attempt=1, parallel={}, committed_at=0.0, duration_s=0.0)
        write_record(run.checkpoint(step).path / COMMIT_MARKER_NAME, marker)
    steps = 30 if sys.argv[1] == "finishes" else 12
    for step in range(1, steps + 1):
        progress.begin_step(step)
        time.sleep(0.02)
        tell(StepEvent(time=time.time(), step=step, loss=1.0, grad_norm=1.0, learning_rate=1.0,
            step_time_s=0.02, tokens_per_s=1.0))
    if sys.argv[1] == "saves":
        progress.enter("save")
        time.sleep(8)
        commit(step)
        tell(EndEvent(time=time.time(), step=step, reason="stopped", stopped_by="SIGUSR1"))
        sys.exit(75)
    commit(step)
    tell(EndEvent(time=time.time(), step=step))
    time.sleep(600)
"""


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return RunDir(tmp_path).attempt(1)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run_dir": tmp_path,
            "parallel": {"data": 2},
            "train": {"steps": 30},
            "checkpoint": {"save_timeout_s": 300},
            "recovery": {"hang_timeout_s": 10, "min_hang_timeout_s": 4},
        }
    )


def start(attempt: AttemptDir, what: str) -> JobHandle:
    attempt.path.mkdir(parents=True)
    program = attempt.path / "rank.py"
    program.write_text(textwrap.dedent(RANK))
    handle = LocalLauncher().submit(
        JobSpec(
            key=str(attempt.path),
            name="test",
            argv=(str(program), what, str(ROOT), str(attempt.path.parent.parent)),
            job_dir=attempt.job_dir,
            distributed=True,
            processes_per_node=2,
        )
    )
    record = AttemptRecord(
        number=1, key=handle.key, job_id=handle.job_id, submitted_at=handle.submitted_at
    )
    write_record(attempt.record_path, record)
    return handle


@pytest.fixture(autouse=True)
def no_job_is_left(attempt: AttemptDir) -> Iterator[None]:
    yield
    launcher = LocalLauncher()
    if (handle := launcher.find(attempt.job_dir)) is not None:
        launcher.cancel(handle, grace_s=0.0)


def watch(config: RunConfig) -> AttemptRecord:
    with disable_run_logger():
        return watch_attempt.fn(config, 1, announce=False)


def test_ranks_that_wait_for_their_save_do_not_hang(config: RunConfig, attempt: AttemptDir) -> None:
    """Somebody outside has asked them to stop, which the watcher does not know."""
    start(attempt, "saves")
    record = watch(config)
    assert (record.outcome, record.reason) == ("stopped", "SIGUSR1 at step 12")
    assert not record.hung
    assert sorted(path.name for path in attempt.stacks_dir.glob("rank_*.json"))
    run = RunDir(config.resolved_run_dir())
    assert stopped_by(run, 1) == "SIGUSR1"
    assert idle_stops(run) == 0


def test_a_job_that_has_done_everything_is_complete_though_it_must_be_ended(
    config: RunConfig, attempt: AttemptDir
) -> None:
    handle = start(attempt, "finishes")
    record = watch(config)
    assert (record.outcome, record.hung) == ("completed", False)
    assert record.signal is not None or record.exit_code != 0
    assert LocalLauncher().poll(handle).state.final
    with disable_run_logger():
        assert begin_attempt.fn(config) is None


def test_a_stopped_agent_holds_up_nothing_that_is_done(
    config: RunConfig, attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.train.task.STACKS_TIMEOUT_S", 1.0)
    handle = start(attempt, "finishes")
    supervisor = psutil.Process(_pid(handle))
    while not attempt.events():
        psutil.Process().cpu_percent(0.05)
    (agent,) = supervisor.children()
    agent.suspend()
    record = watch(config)
    assert (record.outcome, record.hung) == ("completed", False)
    assert not agent.is_running()


def _pid(handle: JobHandle) -> int:
    from infra.launch.record import JobFiles, read_record

    record = read_record(JobFiles(handle.job_dir))
    assert record is not None
    return record.pid


def test_stops_before_the_first_step_are_counted(config: RunConfig) -> None:
    run = RunDir(config.resolved_run_dir())
    for number, outcome in ((1, "stopped"), (2, "failed"), (3, "stopped"), (4, "stopped")):
        record = AttemptRecord.model_validate(
            {"number": number, "key": "k", "job_id": "j", "submitted_at": 0.0, "outcome": outcome}
        )
        write_record(run.attempt(number).record_path, record)
    assert idle_stops(run) == 2
