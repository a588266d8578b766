"""Watching an attempt, with real jobs of the local launcher that train nothing."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.records import AttemptRecord
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RecoveryConfig, RunConfig
from infra import interrupt
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus
from infra.launch.local import LocalLauncher
from tasks.train.task import cancel_attempt, watch_attempt

# Takes a moment to end in good order, as a training job does.
SLEEPS = """
import signal, sys, time
def leave(*_):
    time.sleep(1.5)
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
time.sleep(60)
"""


@pytest.fixture
def launcher() -> LocalLauncher:
    return LocalLauncher()


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return RunDir(tmp_path).attempt(1)


@pytest.fixture
def job(launcher: LocalLauncher, attempt: AttemptDir) -> Iterator[JobHandle]:
    """A job that runs until it is ended, on record as the attempt's."""
    argv = (sys.executable, "-c", SLEEPS)
    handle = launcher.submit(
        JobSpec(key=str(attempt.path), name="test", argv=argv, job_dir=attempt.job_dir)
    )
    record = AttemptRecord(
        number=1, key=handle.key, job_id=handle.job_id, submitted_at=handle.submitted_at
    )
    write_record(attempt.record_path, record)
    yield handle
    launcher.cancel(handle, grace_s=0.5)


def watch(attempt: AttemptDir, **recovery: float) -> AttemptRecord:
    config = RunConfig(
        run_dir=attempt.path.parent.parent, recovery=RecoveryConfig.model_validate(recovery)
    )
    return watch_with(config)


def watch_with(config: RunConfig, *, restarted: bool = False) -> AttemptRecord:
    with disable_run_logger():
        return watch_attempt.fn(config, 1, announce=False, restarted=restarted)


def test_a_job_that_was_cancelled_while_no_flow_watched_is_no_failure(
    launcher: LocalLauncher, attempt: AttemptDir, job: JobHandle
) -> None:
    """A reboot, or a second Ctrl-C: who starts the run again wants it to go on."""
    launcher.cancel(job, grace_s=0.5)
    record = watch(attempt)
    assert record.outcome == "cancelled"
    assert attempt.record() == record


@pytest.mark.parametrize(
    ("restarted", "outcome"), [(True, "failed"), (False, "cancelled")], ids=["server", "person"]
)
def test_a_scancel_while_no_flow_watched_is_undone_by_persons_only(
    launcher: LocalLauncher,
    attempt: AttemptDir,
    job: JobHandle,
    monkeypatch: pytest.MonkeyPatch,
    restarted: bool,
    outcome: str,
) -> None:
    monkeypatch.setattr("tasks.train.task.make_launcher", lambda _: launcher)
    launcher.cancel(job, grace_s=0.5)
    config = RunConfig.model_validate(
        {"run_dir": attempt.path.parent.parent, "launcher": {"kind": "slurm"}}
    )
    assert watch_with(config, restarted=restarted).outcome == outcome


def test_a_job_that_is_cancelled_under_the_flow_is_a_failure(
    launcher: LocalLauncher, attempt: AttemptDir, job: JobHandle
) -> None:
    timer = threading.Timer(1.0, launcher.cancel, [job])
    timer.start()
    record = watch(attempt)
    timer.join()
    assert (record.outcome, record.hung) == ("failed", False)
    assert record.reason.startswith("CANCELLED")


def test_a_silent_job_is_ended_as_hung(attempt: AttemptDir, job: JobHandle) -> None:
    record = watch(attempt, startup_timeout_s=0.5)
    assert (record.outcome, record.hung) == ("failed", True)
    assert record.reason == "no sign of life for 0 s"
    assert attempt.record() == record


def test_a_hang_is_remembered_by_a_flow_that_was_killed_while_it_ended_the_job(
    launcher: LocalLauncher, attempt: AttemptDir, job: JobHandle
) -> None:
    record = attempt.record()
    assert record is not None
    noted = record.model_copy(update={"hung": True, "reason": "no sign of life for 9 s"})
    write_record(attempt.record_path, noted)
    launcher.cancel(job, grace_s=0.5)
    ended = watch(attempt)
    assert (ended.outcome, ended.hung) == ("failed", True)
    assert ended.reason == "no sign of life for 9 s"


# --- ended by a person ----------------------------------------------------------------------------


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command's handler, in this process."""
    monkeypatch.setattr(interrupt, "_pressed_at", -math.inf)
    before = signal.getsignal(signal.SIGINT)
    interrupt.install()
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_that_somebody_swallowed_still_cancels_the_job(
    launcher: LocalLauncher, attempt: AttemptDir, job: JobHandle
) -> None:
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        watch(attempt)
    assert launcher.poll(job).state is JobState.CANCELLED
    record = attempt.record()
    assert record is not None and record.outcome == "cancelled"


@pytest.mark.usefixtures("ctrl_c")
def test_further_interrupts_do_not_cut_the_cancelling_short(
    launcher: LocalLauncher, attempt: AttemptDir, job: JobHandle
) -> None:
    presses = [threading.Timer(delay_s, press_ctrl_c) for delay_s in (1.0, 1.2, 1.8)]
    for press in presses:
        press.start()
    with pytest.raises(KeyboardInterrupt):
        watch(attempt)
    for press in presses:
        press.join()
    assert launcher.poll(job).state is JobState.CANCELLED
    record = attempt.record()
    assert record is not None and record.outcome == "cancelled"
    assert record.reason == "interrupted from the keyboard"


def test_a_job_whose_flow_run_is_cancelled_is_ended(
    launcher: LocalLauncher, attempt: AttemptDir, job: JobHandle
) -> None:
    config = RunConfig(run_dir=attempt.path.parent.parent)
    attempt.record_path.unlink()  # The flow had only just submitted the job.
    cancel_attempt(config, why="the flow run was cancelled")
    assert launcher.poll(job).state is JobState.CANCELLED
    record = attempt.record()
    assert record is not None
    assert (record.outcome, record.reason) == ("cancelled", "the flow run was cancelled")
    assert record.job_id == job.job_id

    cancel_attempt(config, why="again")
    assert attempt.record() == record


def test_without_a_job_there_is_nothing_to_cancel(tmp_path: Path, attempt: AttemptDir) -> None:
    config = RunConfig(run_dir=tmp_path)
    cancel_attempt(config, why="early")
    attempt.path.mkdir(parents=True)
    cancel_attempt(config, why="early")
    assert list(attempt.path.iterdir()) == []


class Queue(LocalLauncher):
    """The local launcher with a queue, as schedulers have one: a job shows as pending for a while, or
    as suspended."""

    def __init__(self, waits_s: float, *, suspends: bool = False) -> None:
        super().__init__()
        self._runs_at, self._suspends = time.monotonic() + waits_s, suspends

    def poll(self, handle: JobHandle) -> JobStatus:
        status = super().poll(handle)
        is_queued = time.monotonic() < self._runs_at and not status.state.final
        if is_queued and self._suspends:
            return replace(status, suspended=True)
        return replace(status, state=JobState.PENDING) if is_queued else status


@pytest.mark.parametrize("suspends", [False, True], ids=["queued", "suspended"])
def test_time_in_a_queue_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, attempt: AttemptDir, job: JobHandle, suspends: bool
) -> None:
    waits_s, startup_timeout_s = 4.0, 1.0
    launcher = Queue(waits_s, suspends=suspends)
    monkeypatch.setattr("tasks.train.task.make_launcher", lambda _: launcher)
    started = time.monotonic()
    record = watch(attempt, startup_timeout_s=startup_timeout_s)
    assert record.hung, "it says nothing once it runs"
    assert time.monotonic() - started > waits_s + startup_timeout_s
