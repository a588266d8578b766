"""Jobs that Slurm starts twice: under the same number, by requeueing, or under two, from two requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_helpers import is_running, log_text, python_job, slurm_config, wait_for_end, wait_for_pids

from infra.launch import make_launcher
from infra.launch.base import JobState, Launcher
from infra.launch.slurm_record import SlurmFiles, node_records
from tests.infra.conftest import SlurmSite, bring_up
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

RUNS = """
import os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def requeueing_site() -> Iterator[SlurmSite]:
    """Slurm's default, which v0.0.38 gives no way to leave for one job."""
    yield from bring_up(nodes=1, requeue=True)


@pytest.mark.parametrize("looked_at", ["while it waits", "when it has left"])
def test_a_job_that_was_requeued_by_hand_gave_way(
    requeueing_site: Any, tmp_path: Path, looked_at: str
) -> None:
    """Its programs were told to end, and its node works: it is no lost node."""
    launcher: Launcher = make_launcher(slurm_config(requeueing_site))
    handle = launcher.submit(python_job(tmp_path / "job", RUNS, str(tmp_path / "pids"), "600"))
    (pid,) = wait_for_pids(tmp_path / "pids", 1)
    command = requeueing_site.cluster.command
    wait_until(lambda: "RUNNING" in command("scontrol", "show", "job", handle.job_id), "its start")
    command("scontrol", "requeue", handle.job_id)
    if looked_at == "when it has left":
        left = ("JobState=FAILED", "ExitCode=91:0")
        wait_until(
            lambda: all(word in command("scontrol", "show", "job", handle.job_id) for word in left),
            "its second start",
        )
        assert "left to a new job" in log_text(launcher, handle)
    files = SlurmFiles(handle.job_dir)
    wait_until(
        lambda: all(n.state.final for n in node_records(files, int(handle.job_id))),
        "its node's word",
    )
    status = wait_for_end(launcher, handle)
    assert status.state is JobState.PREEMPTED
    assert "back into its queue" in status.reason
    wait_until(lambda: not is_running(pid), "the end of its first start")
    assert wait_for_pids(tmp_path / "pids", 1) == [pid], "it has not run again"


def test_a_twin_on_several_nodes_leaves_each_of_them(slurm_site: Any, tmp_path: Path) -> None:
    launcher: Launcher = make_launcher(slurm_config(slurm_site))
    spec = python_job(tmp_path / "job", RUNS, str(tmp_path / "pids"), "0")
    handle = launcher.submit(dataclasses.replace(spec, each_node=True, nodes=2))
    assert wait_for_end(launcher, handle).state is JobState.COMPLETED
    records = SlurmFiles(spec.job_dir).nodes
    before = {path.name: path.read_text() for path in records.iterdir()}
    assert len(before) == len(wait_for_pids(tmp_path / "pids", 2)) == 2
    command = slurm_site.cluster.command
    script, out = tmp_path / "script.sh", tmp_path / "twin.log"
    script.write_text(command("scontrol", "write", "batch_script", handle.job_id, "-"))
    arguments = ["--parsable", "--nodes=2", "--ntasks-per-node=1", f"--output={out}"]
    twin = command("sbatch", *arguments, str(script)).strip()
    wait_until(
        lambda: "ExitCode=90:0" in command("scontrol", "show", "job", twin), "the twin to leave"
    )
    assert out.read_text().count(f"belongs to job {handle.job_id}: nothing is done") == 2
    assert {path.name: path.read_text() for path in records.iterdir()} == before
    assert len(list((tmp_path / "pids").iterdir())) == 2
