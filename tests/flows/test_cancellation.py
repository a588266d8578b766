"""The hooks that Prefect calls when a flow run is cancelled; test_worker_deployments.py has the rest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling

from configs.errors import LaunchError
from configs.files import file_lock
from configs.load import load_config
from configs.rundir import RunDir
from configs.schema import RunConfig
from flows import cancellation
from flows.cancellation import end_evaluations, end_training
from flows.evaluate import evaluate
from flows.locks import held
from flows.pretrain import pretrain
from infra.launch.base import JobHandle, JobSpec, JobState
from infra.launch.local import LocalLauncher
from tasks.recover.task import check_folder
from tests.flows.helpers import tiny_config

LAUNCHER = LocalLauncher()


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load_config(tiny_config(tmp_path))


@pytest.fixture
def run(config: RunConfig) -> RunDir:
    return RunDir(config.resolved_run_dir())


@pytest.fixture
def jobs(run: RunDir) -> Iterator[tuple[JobHandle, JobHandle]]:
    """The job of an attempt, and one of an evaluation, that run until they are ended."""
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    folders = [run.attempt(1).job_dir, run.evaluation(4).job_dir("infer-1")]
    training, evaluation = (
        LAUNCHER.submit(JobSpec(key=str(folder), name="test", argv=argv, job_dir=folder))
        for folder in folders
    )
    yield training, evaluation
    for job in (training, evaluation):
        LAUNCHER.cancel(job, grace_s=0.5)


def states(jobs: tuple[JobHandle, JobHandle]) -> tuple[JobState, ...]:
    return tuple(LAUNCHER.poll(job).state for job in jobs)


def flow_run(**parameters: Any) -> FlowRun:
    """As the server keeps it: parameters are JSON."""
    return FlowRun(flow_id=uuid4(), parameters=parameters)


def test_each_flow_ends_its_own_jobs(
    config: RunConfig, run: RunDir, jobs: tuple[JobHandle, JobHandle]
) -> None:
    given = flow_run(config=config.model_dump(mode="json"))
    end_training(pretrain, given, Cancelling())
    assert states(jobs) == (JobState.CANCELLED, JobState.RUNNING)
    record = run.attempt(1).record()
    assert record is not None and record.outcome == "cancelled"
    assert run.summary_path.is_file()

    (run.path / "config.yaml").write_text((run.path.parent / "config.yaml").read_text())
    end_evaluations(evaluate, flow_run(run_dir=str(run.path), steps=None), Cancelling())
    assert states(jobs) == (JobState.CANCELLED, JobState.CANCELLED)


def test_the_check_of_an_attempts_nodes_ends_too(config: RunConfig, run: RunDir) -> None:
    """Its attempt has ended long ago."""
    folder = check_folder(run.attempt(1)) / "try_2" / "job"
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    check = LAUNCHER.submit(JobSpec(key=str(folder), name="test", argv=argv, job_dir=folder))
    given = flow_run(config=config.model_dump(mode="json"))
    with file_lock(run.locks_dir / "pretrain"):
        end_training(pretrain, given, Cancelling())
        assert LAUNCHER.poll(check).state is JobState.RUNNING
    end_training(pretrain, given, Cancelling())
    assert LAUNCHER.poll(check).state is JobState.CANCELLED


def test_the_check_ends_also_when_the_attempts_job_cannot_be_ended(
    config: RunConfig, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = check_folder(run.attempt(1)) / "try_1" / "job"
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    check = LAUNCHER.submit(JobSpec(key=str(folder), name="test", argv=argv, job_dir=folder))

    def fail(config: RunConfig, *, why: str) -> None:
        raise LaunchError("it cannot be ended")

    monkeypatch.setattr(cancellation, "cancel_attempt", fail)
    with pytest.raises(LaunchError, match="cannot be ended"):
        end_training(pretrain, flow_run(config=config.model_dump(mode="json")), Cancelling())
    assert LAUNCHER.poll(check).state is JobState.CANCELLED


def test_jobs_that_another_flow_sees_to_are_left_alone(
    config: RunConfig, run: RunDir, jobs: tuple[JobHandle, JobHandle]
) -> None:
    """The cancelled flow run never got the run directory, or the run was started again already."""
    given = flow_run(config=config.model_dump(mode="json"))
    with file_lock(run.locks_dir / "pretrain"), file_lock(run.locks_dir / "evaluate"):
        end_training(pretrain, given, Cancelling())
        end_evaluations(pretrain, given, Cancelling())
        assert states(jobs) == (JobState.RUNNING, JobState.RUNNING)
    # A flow within another is cancelled in the process that holds the stage.
    with held(run, "pretrain"):
        end_training(pretrain, given, Cancelling())
        assert states(jobs) == (JobState.CANCELLED, JobState.RUNNING)


def test_a_flow_run_that_had_not_begun_leaves_no_trace(config: RunConfig, run: RunDir) -> None:
    given = flow_run(config=config.model_dump(mode="json"))
    end_training(pretrain, given, Cancelling())
    end_evaluations(pretrain, given, Cancelling())
    assert not run.path.exists()


def test_the_flows_have_the_hooks() -> None:
    from flows.pipeline import pipeline

    assert pretrain.on_cancellation_hooks == [end_training]
    assert evaluate.on_cancellation_hooks == [end_evaluations]
    assert pipeline.on_cancellation_hooks == [end_training, end_evaluations]
