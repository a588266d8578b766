"""The local cluster: its daemons are Slurm's own, and come and go as they are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from configs.errors import InputError
from infra.slurm.cluster import LocalCluster
from infra.slurm.packages import missing_packages
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def node_states(cluster: LocalCluster) -> dict[str, str]:
    lines = cluster.command("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
    return dict(line.split() for line in lines)


def test_all_is_up(slurm_site: Any) -> None:
    cluster = slurm_site.cluster
    assert all(cluster.status().values())
    assert set(node_states(cluster)) == set(cluster.settings.all_node_names)
    assert cluster.token("root", lifespan_s=60).count(".") == 2
    assert slurm_site.token_file.stat().st_mode & 0o077 == 0


def test_a_job_gets_its_gpus(slurm_site: Any, tmp_path: Path) -> None:
    cluster = slurm_site.cluster
    if "gpu" not in cluster.command("sinfo", "-h", "-p", "main", "-o", "%G"):
        pytest.skip("there are no device files that could stand for GPUs")
    out = tmp_path / "out"
    wrap = ("--wrap", "echo $CUDA_VISIBLE_DEVICES")
    cluster.command("sbatch", "--wait", "--gres=gpu:2", f"--output={out}", *wrap)
    assert out.read_text() == "0,1\n"


def test_a_killed_node_is_noticed_and_comes_back(slurm_site: Any) -> None:
    cluster, node = slurm_site.cluster, slurm_site.nodes[-1]
    cluster.kill_node(node)
    assert not cluster.status()[node]
    wait_until(lambda: node_states(cluster)[node] in ("down", "down*"), "the node to be down")
    cluster.start_node(node)
    wait_until(lambda: node_states(cluster)[node] == "idle", "the node to be idle")
    for call in (cluster.kill_node, cluster.start_node):
        with pytest.raises(InputError, match="there is no node 'nowhere'; there are "):
            call("nowhere")


CLUSTER, LAUNCHER = "infra/slurm/test_local_cluster.py", "infra/launch/on_slurm"
WITHOUT_ROOT = (
    f"{CLUSTER}::test_all_is_up",
    f"{CLUSTER}::test_a_job_gets_its_gpus",
    f"{CLUSTER}::test_a_killed_node_is_noticed_and_comes_back",
    f"{LAUNCHER}/test_slurm_submissions.py::test_a_job_whose_submitter_died_before_recording_it_is_found",
    f"{LAUNCHER}/test_slurm_away.py::test_a_cordoned_node_gets_no_jobs",
)
NOBODY = 65534


def test_nothing_of_it_needs_root() -> None:
    """Some of these tests, by a user without rights."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, by setpriv")
    if missing := missing_packages():
        pytest.skip(f"not installed: {' '.join(missing)}")
    # Python may be in root's home, where nobody else may look.
    may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *may_read]
    tests = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        environment = os.environ | dict.fromkeys(("USER", "LOGNAME"), "nobody") | {"HOME": folder}
        done = subprocess.run(
            [
                *(*become, sys.executable, "-m", "pytest", "-q", "-m", "", "-rs"),
                *("-p", "no:cacheprovider", f"--basetemp={folder}/pytest"),
                *(str(tests / name) for name in WITHOUT_ROOT),
            ],
            cwd=tests.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    assert f"{len(WITHOUT_ROOT)} passed" in done.stdout, done.stdout
