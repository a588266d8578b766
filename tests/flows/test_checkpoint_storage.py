"""Checkpoints in storage through the whole pipeline: refused in time, evaluated, removed when scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.rundir import RunDir
from tests.flows.helpers import overland, tiny_config
from tests.tasks.train.s3_server import BUCKET, S3Server

pytestmark = pytest.mark.slow


def test_a_storage_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, s3: S3Server, prefect_server: None
) -> None:
    config = tiny_config(tmp_path, checkpoint={"storage": "s3://no-such-bucket/x"})
    done = overland("run", config)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "s3://no-such-bucket/x" in errors[0]
    assert "no such bucket" in errors[0]
    assert "Traceback" not in done.stderr
    run = RunDir(tmp_path / "run")
    assert run.attempts() == []
    assert run.manifest() is None


@pytest.mark.soak
def test_checkpoints_on_s3_are_evaluated_and_then_removed(
    tmp_path: Path, s3: S3Server, prefect_server: None
) -> None:
    config = tiny_config(
        tmp_path,
        checkpoint={
            "interval_steps": 4,
            "storage": f"s3://{BUCKET}/runs",
            "keep_last": 1,
            "wait_for_commit": True,
        },
        anomalies={"enabled": False},
        evaluate={
            "enabled": True,
            "tasks": ["heldout_perplexity"],
            "limit": 2,
            "bootstrap_iterations": 0,
        },
    )
    done = overland("run", config)
    assert done.returncode == 0, done.stderr
    run = RunDir(tmp_path / "run")
    assert [e.step for e in run.evaluations() if e.scores() is not None] == [4, 8, 12]
    assert [checkpoint.step for checkpoint in run.committed_checkpoints()] == [12]
    assert {key.split("/")[2] for key in s3.stored_keys()} == {"step_00000012-001"}
