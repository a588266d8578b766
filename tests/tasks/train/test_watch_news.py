"""What whoever looks on is told of a cluster's job: that it runs, and what a Ctrl-C does to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from configs.rundir import RunDir
from configs.schema import RunConfig
from infra.launch import slurm
from tasks.train import task, task_begin
from tests.infra.launch.slurm_server import FakeSlurm, make


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    server = FakeSlurm()
    for module in (task, task_begin):
        monkeypatch.setattr(module, "make_launcher", lambda _: make(server))
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("flow"))
    monkeypatch.setattr(task, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(slurm, "_CANCEL_MARGIN_S", 0.1)
    return server


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    slurm_section = {"url": "http://slurm:1", "token_file": "/x"}
    return RunConfig.model_validate(
        {
            "run_dir": tmp_path,
            "launcher": {"kind": "slurm", "slurm": slurm_section},
            "recovery": {"stop_grace_s": 0.4},
        }
    )


def watch_until_ctrl_c(
    config: RunConfig,
    server: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    *,
    flow_started_at: float = 0.0,
) -> list[str]:
    """Watch a job that runs, press Ctrl-C, and return what was said."""
    assert task_begin.begin_attempt.fn(config) == 1
    server.job(1).update(job_state=["RUNNING"], nodes="n1")
    looks: Iterator[int] = iter(range(3))

    def press() -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(task, "raise_if_interrupted", press)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        task.watch_attempt.fn(
            config, 1, announce=False, say=said.append, flow_started_at=flow_started_at
        )
    return said


def test_a_job_runs_and_ends_after_a_ctrl_c(
    config: RunConfig, server: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch_until_ctrl_c(config, server, monkeypatch) == [
        "job 1 runs on n1",
        "interrupted: job 1 is told to end, and has up to 0.4 s to save",
        "job 1 has ended",
    ]
    record = RunDir(config.resolved_run_dir()).attempt(1).record()
    assert record is not None and record.outcome == "cancelled"


def test_a_job_whose_end_is_not_seen_may_go_on(
    config: RunConfig, server: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(request: httpx.Request) -> httpx.Response | None:
        if request.method == "DELETE":
            raise httpx.ConnectError("Connection refused")
        return None

    server.hook = hook
    said = watch_until_ctrl_c(config, server, monkeypatch, flow_started_at=1e12)
    assert said[0] == "job 1 goes on, on n1: it is watched again"
    assert said[-1].startswith("job 1 may go on, as its end was not seen: Slurm has not answered")
    record = RunDir(config.resolved_run_dir()).attempt(1).record()
    assert record is not None and record.outcome is None, "the next start picks it up"
