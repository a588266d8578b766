"""Watching an attempt, with real jobs of the local launcher that train nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.records import AttemptRecord
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RecoveryConfig, RunConfig
from infra.launch.base import JobHandle, JobSpec
from infra.launch.local import LocalLauncher
from tasks.train.task import watch_attempt

SLEEPS = "import time; time.sleep(60)"


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
    with disable_run_logger():
        return watch_attempt.fn(config, 1, announce=False)


def test_a_job_that_was_cancelled_while_no_flow_watched_is_no_failure(
    launcher: LocalLauncher, attempt: AttemptDir, job: JobHandle
) -> None:
    """A reboot, or a second Ctrl-C: who starts the run again wants it to go on."""
    launcher.cancel(job, grace_s=0.5)
    record = watch(attempt)
    assert record.outcome == "cancelled"
    assert attempt.record() == record


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
