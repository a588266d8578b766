"""The local cluster: its daemons are Slurm's own, and come and go as they are told."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.errors import InputError
from infra.slurm import conf
from infra.slurm.cluster import LocalCluster
from infra.slurm.daemons import ClusterError
from infra.slurm.packages import missing_packages
from infra.slurm.settings import ClusterSettings, check, free_port_base, load, save

LIMIT_S = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.1)


def node_states(cluster: LocalCluster) -> dict[str, str]:
    lines = cluster.command("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
    return dict(line.split() for line in lines)


# --- without Slurm --------------------------------------------------------------------------------


def test_settings_are_kept(tmp_path: Path) -> None:
    settings = ClusterSettings(folder=tmp_path, nodes=2, node_prefix="x")
    assert load(tmp_path) is None
    save(settings)
    assert load(tmp_path) == settings


def test_every_daemon_has_a_port_of_its_own(tmp_path: Path) -> None:
    settings = ClusterSettings(folder=tmp_path, nodes=3, cpu_nodes=2)
    ports = [settings.controller_port, settings.rest_port, settings.accounting_port]
    ports += [settings.node_port(node) for node in settings.all_node_names]
    assert sorted(ports) == list(settings.ports)


@pytest.mark.parametrize("folder", ["relative", "/tmp/with space", "/tmp/" + "x" * 80])
def test_folders_that_slurm_cannot_use_are_refused(folder: str) -> None:
    with pytest.raises(InputError, match="absolute path without spaces"):
        check(ClusterSettings(folder=Path(folder)))


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        base = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {base} is taken"):
            check(ClusterSettings(folder=Path("/tmp/cluster"), port_base=base))


def test_configuration_names_each_node_once(tmp_path: Path) -> None:
    settings = ClusterSettings(folder=tmp_path, nodes=2, cpu_nodes=1, node_prefix="x")
    text = conf.slurm_conf(settings, gpus=True)
    lines = [line.split()[0] for line in text.splitlines() if line.startswith("NodeName=x")]
    assert lines == ["NodeName=xnode1", "NodeName=xnode2", "NodeName=xcpu1"]
    assert "{" not in text
    assert "AccountingStorageEnforce" not in text
    with_accounting = conf.slurm_conf(dataclasses.replace(settings, accounting=True), gpus=False)
    assert "AccountingStorageEnforce" in with_accounting
    assert "Gres=gpu" not in with_accounting


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from infra.slurm import packages

    monkeypatch.setattr(packages, "SEARCH_PATH", str(tmp_path))
    missing = packages.missing_packages()
    assert {"munge", "slurmctld", "slurmd", "slurmrestd", "slurm-client"} <= set(missing)
    assert "slurmdbd" not in missing
    assert {"slurmdbd", "mariadb-server"} <= set(packages.missing_packages(accounting=True))


def test_commands_without_a_cluster_say_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.slurm", "--folder", str(tmp_path), "status"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no cluster in" in done.stderr


# --- with Slurm -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_is_up(slurm_site: Any) -> None:
    cluster = slurm_site.cluster
    assert all(cluster.status().values())
    assert set(node_states(cluster)) == set(cluster.settings.all_node_names)
    assert cluster.token("root", lifespan_s=60).count(".") == 2
    assert slurm_site.token_file.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_job_gets_its_gpus(slurm_site: Any, tmp_path: Path) -> None:
    cluster = slurm_site.cluster
    if "gpu" not in cluster.command("sinfo", "-h", "-p", "main", "-o", "%G"):
        pytest.skip("there are no device files that could stand for GPUs")
    out = tmp_path / "out"
    wrap = ("--wrap", "echo $CUDA_VISIBLE_DEVICES")
    cluster.command("sbatch", "--wait", "--gres=gpu:2", f"--output={out}", *wrap)
    assert out.read_text() == "0,1\n"


@pytest.mark.slow
def test_a_killed_node_is_noticed_and_comes_back(slurm_site: Any) -> None:
    cluster, node = slurm_site.cluster, slurm_site.nodes[-1]
    cluster.kill_node(node)
    assert node not in cluster.status()
    wait_until(lambda: node_states(cluster)[node] in ("down", "down*"), "the node to be down")
    cluster.start_node(node)
    wait_until(lambda: node_states(cluster)[node] == "idle", "the node to be idle")
    with pytest.raises(ClusterError, match="there is no node"):
        cluster.kill_node("nowhere")


CLUSTER, LAUNCHER = "infra/slurm/test_local_cluster.py", "infra/launch/test_slurm_launcher.py"
WITHOUT_ROOT = (
    f"{CLUSTER}::test_all_is_up",
    f"{CLUSTER}::test_a_job_gets_its_gpus",
    f"{CLUSTER}::test_a_killed_node_is_noticed_and_comes_back",
    f"{LAUNCHER}::test_a_job_whose_submitter_died_before_recording_it_is_found",
    f"{LAUNCHER}::test_a_cordoned_node_gets_no_jobs",
)
NOBODY = 65534


@pytest.mark.slow
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
