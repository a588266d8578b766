"""Real training jobs whose checkpoints are on a real S3 server that has its moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from s3_server import BUCKET, S3Server
from training_jobs import STEPS, JobResult, run_training_job

from configs.events import CheckpointEvent, StartEvent
from configs.rundir import COMMIT_MARKER_NAME, RunDir
from tasks.train.removal import apply
from tasks.train.staging import STAGED

pytestmark = pytest.mark.slow

NewRun = Callable[[], RunDir]
ON_S3: dict[str, Any] = {"interval_steps": 3, "storage": f"s3://{BUCKET}/training", "keep_last": 1}
NO_EVALUATION: dict[str, Any] = {"enabled": False}


def saves_of(job: JobResult) -> dict[int, str]:
    events = job.attempt.events()
    return {e.step: e.outcome for e in events if isinstance(e, CheckpointEvent)}


def folders(s3: S3Server) -> list[str]:
    return sorted({key.split("/")[2] for key in s3.stored_keys()})


def test_a_killed_job_resumes_from_s3_bit_for_bit(new_run: NewRun, s3: S3Server) -> None:
    expected = run_training_job(new_run(), 1, {})
    run = new_run()
    uploads = [
        s3.inject("503", method="PUT", path="__1_0.distcp", times=2),
        s3.inject("reset", method="PUT", path="common.pt"),
    ]
    sections: dict[str, Any] = {
        "checkpoint": ON_S3,
        "evaluate": NO_EVALUATION,
        "faults": [{"kind": "kill", "step": 5, "rank": 1}],
    }
    killed = run_training_job(run, 1, sections)
    assert killed.exit_code != 0
    assert [fault.struck for fault in uploads] == [2, 1]
    assert saves_of(killed) == {3: "committed"}
    marker = run.checkpoint(3).marker()
    assert marker is not None
    assert marker.storage == f"s3://{BUCKET}/training/run/step_00000003-001"
    assert [path.name for path in run.checkpoint(3).path.iterdir()] == [COMMIT_MARKER_NAME]

    downloads = [
        s3.inject("503", method="GET", path="__0_0.distcp", times=2),
        s3.inject("truncate", method="GET", path="__1_0.distcp"),
        s3.inject("flip", method="GET", path="common.pt"),
    ]
    resumed = run_training_job(run, 2, sections)
    assert resumed.exit_code == 0, resumed.explain()
    assert [fault.struck for fault in downloads] == [2, 1, 1]
    start = next(e for e in resumed.attempt.events() if isinstance(e, StartEvent))
    assert (start.step, start.checkpoint, start.loaded_from) == (3, "step_00000003", "storage")
    assert start.skipped_checkpoints == {}
    for number in range(4, STEPS + 1):
        ours, theirs = resumed.steps()[number], expected.steps()[number]
        assert (ours.loss, ours.grad_norm) == (theirs.loss, theirs.grad_norm)
    assert list((run.checkpoints_dir / STAGED).iterdir()) == []

    apply(run, resumed_config(resumed))  # the job itself may have ended in the middle of its last
    assert [checkpoint.step for checkpoint in run.committed_checkpoints()] == [STEPS]
    assert folders(s3) == ["step_00000008-002"]
    assert s3.unfinished_uploads() == []


def resumed_config(job: JobResult) -> Any:
    from configs.schema import RunConfig

    return RunConfig.model_validate_json(job.attempt.config_path.read_bytes())


@pytest.mark.soak
def test_a_storage_that_refuses_costs_a_checkpoint_and_not_the_run(
    new_run: NewRun, s3: S3Server
) -> None:
    run = new_run()
    s3.inject("503", method="PUT", path="step_00000003-001", times=10_000)
    job = run_training_job(run, 1, {"checkpoint": ON_S3, "evaluate": NO_EVALUATION})
    assert job.exit_code == 0, job.explain()
    assert saves_of(job) == {3: "failed", 6: "committed", STEPS: "committed"}
    failure = next(
        e for e in job.attempt.events() if isinstance(e, CheckpointEvent) and e.outcome == "failed"
    )
    assert f"s3://{BUCKET}/training/run/step_00000003-001/" in failure.error
    assert "could not be written: " in failure.error
    assert not run.checkpoint(3).path.exists()
    assert "step_00000003-001" not in folders(s3)
