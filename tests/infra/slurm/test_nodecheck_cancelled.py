"""A flow that is interrupted or cancelled while it checks nodes: the check's job ends with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from configs.rundir import AttemptDir, RunDir
from flows.chaos.slurm_audit import audit, jobs_of
from tasks.recover.nodecheck_files import CheckFiles
from tasks.recover.nodecheck_run import read_report
from tasks.recover.task import check_folder
from tests.flows.conftest import prefect_server  # noqa: F401  (a fixture)
from tests.flows.helpers import overland, start_overland, wait_for
from tests.flows.prefect_api import Api, Worker
from tests.infra.slurm.test_pretrain_on_slurm import slurm_run, steps_of

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.usefixtures("prefect_server")]

ALL_ENDED = {"jobs": 2, "duplicate_jobs": 0, "orphan_jobs": 0}
"""The attempt and the check. Left alone, the check's nodes would wait for an hour."""


def failing_run(site: Any, folder: Path) -> Path:
    """Its first attempt blames a node, so that nodes are checked."""
    return slurm_run(
        site,
        folder,
        recovery={"node_check": {"start_timeout_s": 3600, "timeout_s": 3600, "slow_ratio": 1000}},
        faults=[
            {"kind": "exception", "step": 6, "message": "CUDA error: uncorrectable ECC error encountered"}
        ],
    )  # fmt: skip


def is_checked(site: Any, run: RunDir) -> bool:
    """Whether the check's job runs, and has its first order."""
    if not CheckFiles(check_folder(run.attempt(1)) / "try_1").order_path(0).exists():
        return False
    return any(
        "nodecheck" in job.key and job.state == "RUNNING" for job in jobs_of(site.cluster, run)
    )


def assert_interrupted(attempt: AttemptDir) -> None:
    assert read_report(check_folder(attempt)) is None
    assert attempt.action() is None


def test_ctrl_c_in_a_check(slurm_site: Any, tmp_path: Path) -> None:
    config, run, log = failing_run(slurm_site, tmp_path), RunDir(tmp_path / "run"), tmp_path / "log"
    flow = start_overland("run", config, "--json", log=log)
    wait_for(lambda: is_checked(slurm_site, run), flow, log)
    flow.send_signal(signal.SIGINT)
    assert flow.wait(120) == 130, log.read_text()
    assert_interrupted(run.attempt(1))
    assert audit(slurm_site.cluster, run) == ALL_ENDED

    # The same command checks the nodes anew, and goes on.
    done = overland("run", config, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(check_folder(run.attempt(1)))
    assert report is not None
    assert (report.complete, report.jobs) == (True, 2)
    assert steps_of(run.attempt(2))[-1] == 12


def test_a_flow_run_that_is_cancelled_in_a_check(slurm_site: Any, tmp_path: Path) -> None:
    config, run = failing_run(slurm_site, tmp_path), RunDir(tmp_path / "run")
    assert overland("deploy").returncode == 0
    worker = Worker(tmp_path)
    try:
        with httpx.Client(base_url=os.environ["PREFECT_API_URL"], timeout=30) as client:
            api = Api(client)
            flow_run = api.start("pipeline", config)
            worker.wait_for(lambda: is_checked(slurm_site, run))
            api.cancel(flow_run)
            worker.wait_for(lambda: api.state_of(flow_run) == "CANCELLED")
        assert_interrupted(run.attempt(1))
        assert audit(slurm_site.cluster, run) == ALL_ENDED, worker.log.read_text()
    finally:
        worker.kill()
