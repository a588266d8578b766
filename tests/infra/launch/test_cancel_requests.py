"""Requests to end a job, on storage that fails for a while."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import LaunchError
from configs.files import write_json
from infra.launch import supervisor
from infra.launch.base import JobState
from infra.launch.record import CancelRequests, JobFiles


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    """A look at cancel.json fails, whoever looks: it is a folder."""
    files = JobFiles(tmp_path)
    files.cancel.mkdir()
    return files


def test_a_look_that_fails_finds_nothing_for_a_while(
    files: JobFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = CancelRequests(files, limit_s=600.0)
    assert [requests.grace_s() for _ in range(3)] == [None] * 3
    assert capsys.readouterr().err.count("cancel.json cannot be read") == 1
    files.cancel.rmdir()
    write_json(files.cancel, {"grace_s": 7.0})
    assert requests.grace_s() == 7.0
    files.cancel.write_text('{"grace')
    assert requests.grace_s() is None
    with pytest.raises(LaunchError, match="cannot be read"):
        CancelRequests(files, limit_s=0.0).grace_s()


@pytest.mark.parametrize(
    ("limit_s", "state"), [(600.0, None), (0.0, JobState.FAILED)], ids=["a while", "for good"]
)
def test_a_job_goes_on_while_its_storage_fails(
    files: JobFiles, monkeypatch: pytest.MonkeyPatch, limit_s: float, state: JobState | None
) -> None:
    monkeypatch.setattr(supervisor, "_STORAGE_LIMIT_S", limit_s)
    order = supervisor.Order(
        files=files,
        key="k",
        name="n",
        argv=(),
        time_limit_s=60.0,
        low_priority=False,
        grace_s=1.0,
    )
    seconds = 0.5 if state is None else 60
    program = subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"])
    try:
        stop = supervisor.watch(program, order)
        assert (stop.state if stop else None) == state
    finally:
        program.kill()
        program.wait()
