"""How jobs end from outside, and what the launcher says of it."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import WAITS, ranks_job, sleeper, with_settings
from job_helpers import is_running, python_job, wait_for_end, wait_for_pids

from infra.launch.base import JobState, Launcher
from infra.slurm.daemons import ClusterError
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]


def test_a_node_that_goes_down_fails_the_job(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(sleeper(tmp_path))
    wait_for_pids(tmp_path / "job-pids", 1)
    wait_until(lambda: launcher.poll(handle).state is JobState.RUNNING, "the job to run")
    (node,) = launcher.poll(handle).nodes
    slurm_site.cluster.command(
        "scontrol", "update", f"nodename={node}", "state=down", "reason=test"
    )
    status = wait_for_end(launcher, handle)
    assert (status.state, status.nodes) == (JobState.NODE_FAIL, (node,))
    slurm_site.cluster.repair(timeout_s=60.0)


def test_a_crashed_node_fails_a_job_of_two_nodes(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(ranks_job(tmp_path, WAITS, nodes=2))
    wait_for_pids(tmp_path / "pids", 2)
    wait_until(lambda: len(launcher.poll(handle).nodes) == 2, "two nodes")
    lost = launcher.poll(handle).nodes[1]
    slurm_site.cluster.kill_node(lost)
    try:
        status = wait_for_end(launcher, handle)
        assert status.state is JobState.NODE_FAIL
        assert lost in status.nodes
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)


def test_a_persons_scancel_is_told_from_ours(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(sleeper(tmp_path))
    (pid,) = wait_for_pids(tmp_path / "job-pids", 1)
    slurm_site.cluster.command("scancel", handle.job_id)
    status = wait_for_end(launcher, handle)
    assert status.state is JobState.CANCELLED
    assert status.reason.startswith("cancelled from outside")
    assert not is_running(pid)


def test_a_pending_job_is_cancelled(slurm_site: Any, tmp_path: Path) -> None:
    busy = with_settings(slurm_site, cpus_per_node=slurm_site.cluster.settings.cpus_per_node)
    spec = dataclasses.replace(
        sleeper(tmp_path, name="first"), exclude_nodes=tuple(slurm_site.nodes[1:])
    )
    first = busy.submit(spec)
    wait_for_pids(tmp_path / "first-pids", 1)
    waits = busy.submit(
        dataclasses.replace(
            sleeper(tmp_path, name="second"),
            exclude_nodes=(*slurm_site.nodes[1:], "a-node-that-was-removed"),
        )
    )
    wait_until(lambda: "queue" in busy.poll(waits).reason, "the reason why it waits")
    assert busy.poll(waits).state is JobState.PENDING
    busy.cancel(waits)
    assert (busy.poll(waits).state, busy.poll(waits).reason) == (JobState.CANCELLED, "cancelled")
    assert busy.poll(first).nodes == (slurm_site.nodes[0],)
    busy.cancel(first, grace_s=0.0)


def test_slurms_time_limit(launcher: Launcher, slurm_site: Any, tmp_path: Path) -> None:
    handle = launcher.submit(sleeper(tmp_path))
    wait_for_pids(tmp_path / "job-pids", 1)
    # A limit of a minute would take more than one: Slurm looks every 30 s.
    slurm_site.cluster.command("scontrol", "update", f"jobid={handle.job_id}", "endtime=now")
    status = wait_for_end(launcher, handle)
    assert status.state is JobState.TIMEOUT
    assert "time limit" in status.reason


def test_a_preempted_job(slurm_site: Any, tmp_path: Path) -> None:
    cpus = slurm_site.cluster.settings.cpus_per_node
    low = with_settings(
        slurm_site, low_priority_partition="low", low_priority_nice=70, cpus_per_node=cpus
    )
    only = tuple(slurm_site.cluster.settings.all_node_names[1:])
    spec = dataclasses.replace(sleeper(tmp_path, name="low"), low_priority=True, exclude_nodes=only)
    weak = low.submit(spec)
    wait_for_pids(tmp_path / "low-pids", 1)
    strong = low.submit(dataclasses.replace(sleeper(tmp_path, 0.1, "high"), exclude_nodes=only))
    assert wait_for_end(low, strong).state is JobState.COMPLETED
    assert wait_for_end(low, weak).state is JobState.PREEMPTED
    nices = [
        slurm_site.cluster.command("squeue", "-h", "-t", "all", "-j", job.job_id, "-o", "%y")
        for job in (weak, strong)
    ]
    assert [int(nice) for nice in nices] == [70, 0]


def test_a_node_that_cannot_start_jobs_is_no_persons_scancel(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    """Slurm ends a job that may not be requeued with CANCELLED, without a reason."""
    ill, *others = slurm_site.nodes
    slurm_site.cluster.make_ill(ill)
    try:
        spec = dataclasses.replace(sleeper(tmp_path), exclude_nodes=tuple(others))
        status = wait_for_end(launcher, launcher.submit(spec))
        assert (status.state, status.nodes) == (JobState.NODE_FAIL, (ill,))
        assert status.reason.startswith("the job could not be started")
        assert not (tmp_path / "job-pids").exists()
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)


def test_a_dependency_is_waited_for_or_given_up(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    def depends_on(name: str, code: str) -> JobState:
        first = launcher.submit(python_job(tmp_path / f"{name}-first", code, key=f"{name}-first"))
        spec = python_job(tmp_path / name, "", key=name)
        spec = dataclasses.replace(spec, dependency=f"afterok:{first.job_id}")
        handle = launcher.submit(spec)
        state = wait_for_end(launcher, handle).state
        assert launcher.poll(first).state.final, "it came first"
        if state is JobState.FAILED:
            assert "DependencyNeverSatisfied" in launcher.poll(handle).reason
        return state

    assert depends_on("good", "import time; time.sleep(1)") is JobState.COMPLETED
    assert depends_on("bad", "import sys, time; time.sleep(1); sys.exit(3)") is JobState.FAILED
    left = slurm_site.cluster.command("squeue", "-h", "-t", "pending", "-o", "%k")
    assert "bad" not in left, "what can never start does not stay in the queue"


def test_slurmdbd_remembers_what_slurmctld_has_forgotten(
    accounting_site: Any, tmp_path: Path
) -> None:
    cluster = accounting_site.cluster
    launcher = with_settings(accounting_site, account="research")
    handle = launcher.submit(sleeper(tmp_path))
    wait_for_pids(tmp_path / "job-pids", 1)
    cluster.command("scancel", handle.job_id)

    def is_forgotten() -> bool:
        with suppress(ClusterError):
            cluster.command("scontrol", "show", "job", handle.job_id)
            return False
        return True

    wait_until(is_forgotten, "slurmctld to forget the job", limit_s=180.0)
    # By its nodes' word alone this would be Slurm's failure.
    status = launcher.poll(handle)
    assert status.state is JobState.CANCELLED
    assert status.reason.startswith("cancelled from outside")
    assert status.nodes == tuple(accounting_site.nodes)


EATS = """
kept = []
for _ in range(200):
    kept.append(bytearray(b"x" * (4 << 20)))
time.sleep(600)
"""


@pytest.mark.parametrize("distributed", [False, True], ids=["batch", "step"])
def test_out_of_memory(slurm_site: Any, tmp_path: Path, distributed: bool) -> None:
    conf = slurm_site.cluster.settings.conf.read_text()
    if "task/cgroup" not in conf:
        pytest.skip("memory can only be limited where cgroups of version 1 can be written")
    size_gib = 0.4 if distributed else 0.1
    small = with_settings(slurm_site, memory_per_node_gib=size_gib)
    spec = python_job(tmp_path / "job", EATS)
    if distributed:
        spec = ranks_job(tmp_path, EATS, nodes=1)
    status = wait_for_end(small, small.submit(spec))
    assert status.state is JobState.OUT_OF_MEMORY
    assert "more memory" in status.reason
