"""An attempt whose job is refused was none: wrong input at first, and later an error that loses nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from configs.errors import JobRefusedError, SiteError
from configs.records import AttemptRecord
from configs.rundir import RunDir, write_record
from configs.schema import RunConfig
from tasks.train import task_begin
from tests.infra.launch.slurm_server import FakeSlurm, make

REFUSAL = {"error_number": 2014, "error": "Requested node configuration is not available"}


def refuse(request: httpx.Request) -> httpx.Response | None:
    return httpx.Response(500, json={"errors": [REFUSAL]}) if request.method == "POST" else None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    server = FakeSlurm()
    monkeypatch.setattr(task_begin, "make_launcher", lambda _: make(server))
    monkeypatch.setattr(task_begin, "get_run_logger", lambda: logging.getLogger("flow"))
    return server


def begin(run: RunDir) -> int | None:
    return task_begin.begin_attempt.fn(RunConfig(name="r", run_dir=run.path))


def test_the_first_job_refused_is_wrong_input_and_leaves_no_attempt(
    server: FakeSlurm, tmp_path: Path
) -> None:
    run, server.hook = RunDir(tmp_path), refuse
    with pytest.raises(SiteError, match="was refused: no node can ever satisfy it"):
        begin(run)
    assert list(tmp_path.iterdir()) == []
    # With a config that is right, the same folder serves.
    server.hook = lambda _: None
    assert begin(run) == 1
    assert run.attempt(1).record() is not None


def test_a_later_job_refused_is_an_error_and_leaves_the_attempts_that_were(
    server: FakeSlurm, tmp_path: Path
) -> None:
    run = RunDir(tmp_path)
    assert begin(run) == 1
    record = run.attempt(1).record()
    assert record is not None
    failed = AttemptRecord.model_validate(record.model_dump() | {"outcome": "failed"})
    write_record(run.attempt(1).record_path, failed)
    server.hook = refuse
    with pytest.raises(JobRefusedError):
        begin(run)
    assert [attempt.number for attempt in run.attempts()] == [1]
    server.hook = lambda _: None
    assert begin(run) == 2
