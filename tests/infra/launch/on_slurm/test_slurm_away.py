"""slurmctld or slurmrestd is away while jobs run; a node that is not to be used."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import sleeper, with_settings
from job_helpers import python_job, wait_for_end, wait_for_pids

from configs.errors import LaunchError
from infra.launch.base import JobState, Launcher
from infra.launch.slurm_record import SlurmFiles, Submission, read
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]


def all_comments(site: Any) -> list[str]:
    """Comments of all jobs that slurmctld knows."""
    out = site.cluster.command("squeue", "-h", "-t", "all", "-o", "%k")
    return [line for line in out.splitlines() if line]


def test_slurmctld_restarts_while_a_job_runs(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(sleeper(tmp_path, 3.0))
    wait_for_pids(tmp_path / "job-pids", 1)
    wait_until(lambda: launcher.poll(handle).state is JobState.RUNNING, "the job to run")
    # Not SIGKILL: Slurm then loses, and ends, the jobs of its last seconds.
    slurm_site.cluster.stop_controller()
    assert launcher.poll(handle).state in (JobState.PENDING, JobState.RUNNING)
    slurm_site.cluster.start_controller()
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.COMPLETED, 0)


def test_slurmrestd_is_away_while_jobs_are_watched_submitted_and_ended(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    watched = launcher.submit(sleeper(tmp_path, 1.0, "watched"))
    wait_for_pids(tmp_path / "watched-pids", 1)
    wait_until(lambda: launcher.poll(watched).state is JobState.RUNNING, "the job to run")
    slurm_site.cluster.stop_rest()
    spec = sleeper(tmp_path, 600.0, "new")
    with ThreadPoolExecutor() as pool:
        try:
            submitted = pool.submit(launcher.submit, spec)
            for _ in range(10):
                assert launcher.poll(watched).state in (JobState.PENDING, JobState.RUNNING)
                time.sleep(0.4)
        finally:
            slurm_site.cluster.start_rest()
        new = submitted.result()
    assert wait_for_end(launcher, watched).state is JobState.COMPLETED
    marked = [comment for comment in all_comments(slurm_site) if comment.endswith(" new")]
    submission = read(SlurmFiles(spec.job_dir).submission, Submission)
    assert submission is not None
    assert marked.count(submission.comment) == 1
    launcher.cancel(new, grace_s=0.0)


def test_patience_has_an_end(slurm_site: Any, tmp_path: Path) -> None:
    nobody = with_settings(slurm_site, url="http://127.0.0.1:9", patience_s=0.3)
    with pytest.raises(LaunchError, match=r"has not answered for 0\.3 s.*127\.0\.0\.1:9"):
        nobody.submit(python_job(tmp_path / "job", ""))
    with pytest.raises(LaunchError, match="jobs go on without us"):
        nobody.nodes()


def test_a_cordoned_node_gets_no_jobs(launcher: Launcher, slurm_site: Any, tmp_path: Path) -> None:
    node = slurm_site.nodes[0]
    assert set(slurm_site.nodes) <= set(launcher.nodes())
    only = with_settings(slurm_site, partition="cpu")
    assert only.nodes() == slurm_site.cluster.settings.cpu_node_names
    launcher.cordon(node, "failed twice; see run/7")
    try:
        assert node not in launcher.nodes()
        assert "Reason=failed twice; see run/7" in slurm_site.cluster.command(
            "scontrol", "show", "node", node
        )
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)
    with pytest.raises(LaunchError, match="Slurm has no such node"):
        launcher.cordon("nowhere", "test")
