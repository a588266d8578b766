"""slurmrestd and slurmctld away while a run trains: the job goes on, the flow waits, nothing is submitted twice."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from configs.events import StepEvent
from configs.rundir import AttemptDir, RunDir
from flows.chaos.slurm_audit import ClusterJob, audit, jobs_of
from tests.flows.conftest import prefect_server  # noqa: F401  (a fixture)
from tests.flows.helpers import rank_processes, start_overland, wait_for
from tests.infra.slurm.test_pretrain_on_slurm import slurm_run, start_of, steps_of

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.usefixtures("prefect_server")]

STEPS, INTERVAL = 140, 10
AWAY_S = 60.0
CONTROLLER_AWAY_S = 20.0


def long_run(site: Any, folder: Path) -> Path:
    """A second a step in the first attempt, so that it outlasts the daemons' absence; silence that is
    shorter than that absence counts as a hang."""
    return slurm_run(
        site,
        folder,
        train={"steps": STEPS, "validation_interval_steps": STEPS},
        checkpoint={"interval_steps": INTERVAL},
        recovery={"min_hang_timeout_s": AWAY_S / 2},
        faults=[{"kind": "slow", "step": 10, "steps": 120, "delay_s": 1.0}],
    )


def be_away(seconds: float, flow: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert flow.poll() is None, log.read_text()
        time.sleep(0.5)


def steps_between(attempt: AttemptDir, begin: float, end: float) -> int:
    events = [event for event in attempt.events() if isinstance(event, StepEvent)]
    return sum(begin < event.time < end for event in events)


def running(jobs: list[ClusterJob]) -> list[int]:
    return [job.job_id for job in jobs if job.state == "RUNNING"]


def test_a_run_goes_on_while_its_daemons_are_away(slurm_site: Any, tmp_path: Path) -> None:
    cluster = slurm_site.cluster
    config, run, log = long_run(slurm_site, tmp_path), RunDir(tmp_path / "run"), tmp_path / "log"
    flow = start_overland("run", config, "--json", log=log)
    first = run.attempt(1)
    wait_for(lambda: len(steps_of(first)) >= 12, flow, log)

    before = time.time()
    cluster.stop_rest()
    try:
        be_away(AWAY_S, flow, log)
        (job,) = running(jobs_of(cluster, run))
    finally:
        cluster.start_rest()
    assert steps_between(first, before, time.time())

    before = time.time()
    cluster.stop_controller()
    try:
        be_away(CONTROLLER_AWAY_S, flow, log)
    finally:
        cluster.start_controller()
    assert steps_between(first, before, time.time())
    assert running(jobs_of(cluster, run)) == [job]

    assert flow.wait(300) == 0, log.read_text()
    assert len(run.attempts()) == 1
    assert steps_of(first) == list(range(1, STEPS + 1))
    assert audit(cluster, run) == {"jobs": 1, "duplicate_jobs": 0, "orphan_jobs": 0}


def test_what_fails_while_slurmrestd_is_away_is_restarted_once_it_is_back(
    slurm_site: Any, tmp_path: Path
) -> None:
    """The flow cannot see the job's end, nor submit the next one."""
    cluster = slurm_site.cluster
    config, run, log = long_run(slurm_site, tmp_path), RunDir(tmp_path / "run"), tmp_path / "log"
    flow = start_overland("run", config, "--json", log=log)
    wait_for(lambda: run.checkpoint(2 * INTERVAL).is_committed(), flow, log)

    cluster.stop_rest()
    try:
        rank_processes(run.path)[1].kill()
        be_away(AWAY_S, flow, log)
        assert running(jobs_of(cluster, run)) == []
        assert len(run.attempts()) == 1
    finally:
        cluster.start_rest()

    assert flow.wait(400) == 0, log.read_text()
    first, second = run.attempts()
    verdict, start = first.verdict(), start_of(second)
    assert verdict is not None
    assert verdict.failure_class == "NodeFailure", "the killed rank, not the silence"
    assert start.step >= 2 * INTERVAL
    assert steps_of(second) == list(range(start.step + 1, STEPS + 1))
    assert audit(cluster, run) == {"jobs": 2, "duplicate_jobs": 0, "orphan_jobs": 0}
