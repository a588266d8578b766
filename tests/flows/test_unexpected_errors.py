"""What programs and people get when a flow fails in a way that nobody foresaw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from configs.records import AttemptRecord
from configs.rundir import RunDir, write_record
from tests.flows.helpers import tiny_config

FULL_DISK = "OSError(28, 'No space left on device')"
LAUNCH_ERROR = "LaunchError('the job was started on elsewhere')"

# The command, with a flow that fails.
COMMAND = """
import flows.cli, flows.pipeline
from configs.errors import LaunchError

def pipeline(config):
    raise {error}

flows.pipeline.pipeline = pipeline
flows.cli.main()
"""


def run(tmp_path: Path, error: str) -> subprocess.CompletedProcess[str]:
    config = str(tiny_config(tmp_path))
    command = [sys.executable, "-c", COMMAND.format(error=error), "run", config, "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def trained(tmp_path: Path) -> None:
    """The run directory has an attempt that came to its end."""
    record = AttemptRecord(
        number=1, key="k", job_id="j", submitted_at=1.0, ended_at=2.0, outcome="completed"
    )
    run = RunDir(tmp_path / "run")
    run.locks_dir.mkdir(parents=True)
    write_record(run.attempt(1).record_path, record)


@pytest.mark.usefixtures("trained")
def test_the_summary_comes_before_the_traceback(tmp_path: Path) -> None:
    result = run(tmp_path, FULL_DISK)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("OSError: [Errno 28] No space left on device\n")
    summary = json.loads(result.stdout)
    assert summary["status"] == "failed"
    assert summary["failure"]["sentence"] == FULL_DISK
    assert [attempt["outcome"] for attempt in summary["attempts"]] == ["completed"]


@pytest.mark.usefixtures("trained")
def test_an_error_that_no_attempt_tells_is_in_the_summary(tmp_path: Path) -> None:
    result = run(tmp_path, LAUNCH_ERROR)
    assert result.returncode == 1
    assert result.stderr.endswith("error: the job was started on elsewhere\n")
    assert "Traceback" not in result.stderr
    summary = json.loads(result.stdout)
    assert summary["status"] == "failed"
    assert summary["failure"]["sentence"] == "the job was started on elsewhere"


def test_without_an_attempt_there_is_nothing_to_sum_up(tmp_path: Path) -> None:
    result = run(tmp_path, FULL_DISK)
    assert (result.returncode, result.stdout) == (1, "")
    assert "No space left on device" in result.stderr
    assert not (tmp_path / "run").exists()
