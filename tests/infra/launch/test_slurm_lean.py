"""The faults that a Slurm cluster is known for, once each, in every test run; many more of them are in
on_slurm/."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from job_helpers import python_job, slurm_config, wait_for_end

from configs.errors import LaunchError
from infra.launch import make_launcher
from infra.launch.base import JobState, Launcher
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def launcher(slurm_site: Any) -> Launcher:
    return make_launcher(slurm_config(slurm_site))


def test_reattached_while_slurmrestd_is_away_and_ended_by_a_person(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(python_job(tmp_path / "job", SLEEP))
    wait_until(lambda: launcher.poll(handle).state is JobState.RUNNING, "the job to run")
    slurm_site.cluster.stop_rest()
    try:
        wait_until(lambda: launcher.poll(handle).stale, "the launcher to notice")
        time.sleep(5.0)
        assert launcher.poll(handle).state is JobState.RUNNING
    finally:
        slurm_site.cluster.start_rest()
    # A flow that is started again has a launcher, and a site, of its own.
    other = make_launcher(slurm_config(slurm_site, poll_interval_s=0.3))
    found = other.find(tmp_path / "job")
    assert found == handle
    assert other.poll(found).state is JobState.RUNNING
    slurm_site.cluster.command("scancel", handle.job_id)
    status = wait_for_end(other, found)
    assert (status.state, status.reason[:22]) == (JobState.CANCELLED, "cancelled from outside")


def test_a_partition_that_does_not_exist_is_refused(slurm_site: Any, tmp_path: Path) -> None:
    launcher = make_launcher(slurm_config(slurm_site, partition="gpus"))
    with pytest.raises(LaunchError, match="partition 'gpus' does not exist: the server has main"):
        launcher.submit(python_job(tmp_path / "job", SLEEP))
    assert launcher.find(tmp_path / "job") is None


def test_a_killed_node_is_lost_and_its_job_with_it(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(python_job(tmp_path / "job", SLEEP))
    wait_until(lambda: launcher.poll(handle).state is JobState.RUNNING, "the job to run")
    (node,) = launcher.poll(handle).nodes
    slurm_site.cluster.kill_node(node)
    try:
        status = wait_for_end(launcher, handle)
        assert (status.state, status.nodes) == (JobState.NODE_FAIL, (node,))
        assert launcher.lost_nodes() == [node]
        assert node not in launcher.nodes()
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)
    assert node in launcher.nodes()
