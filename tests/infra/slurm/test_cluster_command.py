"""`python -m infra.slurm`: its sentences and exit codes, and a cluster by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from configs.schema import LauncherConfig
from infra.launch import make_launcher
from infra.slurm.__main__ import main
from infra.slurm.cluster import LocalCluster
from infra.slurm.daemons import ClusterError
from infra.slurm.packages import missing_packages
from infra.slurm.ports import reserved_ports
from tests.infra.launch.job_helpers import log_text, python_job, wait_for_end

BAD_INPUT = 2


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of a cluster; one that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="overland-command-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


def refused(folder: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence with which it is."""
    assert main(["--folder", str(folder), *arguments]) == BAD_INPUT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


# --- without Slurm --------------------------------------------------------------------------------


def test_commands_without_a_cluster_say_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.slurm", "--folder", str(tmp_path), "status"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == BAD_INPUT
    assert "there is no cluster in" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["down"], ["status"], ["kill-node", "node1"], ["start-node", "node1"], ["exec", "squeue"]],
    ids=lambda arguments: arguments[0],
)
def test_without_a_cluster_it_is_said_how_to_bring_one_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    path = tmp_path / "file"
    path.touch()
    for folder in (tmp_path / "none", path):
        said = refused(folder, *arguments, capsys=capsys)
        assert said.startswith(f"error: there is no cluster in {folder}: `python -m infra.slurm ")


def test_a_chroot_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(folder, "up", "--root", "/nosuch", capsys=capsys)
    assert "--root" in said
    assert not folder.exists()
    folder.mkdir()
    (folder / "thesis.tex").touch()
    said = refused(folder, "release", str(folder), capsys=capsys)
    assert "is no chroot with Slurm: give a new or an empty folder" in said


# --- with Slurm -----------------------------------------------------------------------------------

needs_slurm = pytest.mark.skipif(bool(missing_packages()), reason="Slurm is not installed")


@pytest.fixture
def port_base() -> Iterator[str]:
    with reserved_ports(20) as base:
        yield str(base)


def started(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """As a command of its own, which its daemons outlive; `path`: where programs are looked for first."""
    return subprocess.run(
        [sys.executable, "-m", "infra.slurm", "--folder", str(folder), *arguments],
        env=os.environ | {"PATH": f"{path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_slurm
@pytest.mark.slow
def test_a_cluster_by_hand(
    folder: Path, port_base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    up = ("up", "--nodes", "1", "--port-base", port_base, "--node-prefix", "x")
    try:
        assert started(folder, *up).returncode == 0
        text = started(folder, *up).stdout
        # What is printed works as it stands: a job gets the memory that training needs.
        launcher = make_launcher(LauncherConfig.model_validate(yaml.safe_load(text)["launcher"]))
        handle = launcher.submit(python_job(tmp_path / "job", "print(len(bytearray(1 << 29)))"))
        wait_for_end(launcher, handle)
        assert log_text(launcher, handle) == f"{1 << 29}\n"

        said = refused(folder, "up", "--nodes", "3", capsys=capsys)
        assert "--nodes: the cluster in" in said
        assert "is up with 1: end it first" in said
        assert "is up without: " in refused(folder, "up", "--accounting", capsys=capsys)
        said = refused(folder, "kill-node", "node1", capsys=capsys)
        assert said == "error: there is no node 'node1'; there are xnode1, xcpu1"
        assert "nosuch cannot be run" in refused(folder, "exec", "nosuch", capsys=capsys)
        assert "like: exec squeue" in refused(folder, "exec", capsys=capsys)
        assert started(folder, "kill-node", "xnode1").returncode == 0
        status = started(folder, "status")
        assert (status.returncode, "xnode1: down\n" in status.stdout) == (1, True)
        assert started(folder, "start-node", "xnode1").returncode == 0
        assert started(folder, "status").returncode == 0

        drain = ("exec", "scontrol", "update", "nodename=xnode1", "state=drain", "reason=test")
        assert started(folder, *drain).returncode == 0
        again = started(folder, *up)
        assert (again.returncode, "xnode1 is drained and takes no" in again.stderr) == (0, True)
    finally:
        assert started(folder, "down").returncode == 0
    assert started(folder, "status").returncode == 1
    assert "is down: " in refused(folder, "exec", "squeue", capsys=capsys)


@needs_slurm
@pytest.mark.slow
def test_what_does_not_come_up_is_taken_down(folder: Path, port_base: str) -> None:
    """So that `up` with other options is not taken for a cluster that is up in part."""
    broken = folder.parent / "slurmrestd"
    broken.write_text("#!/bin/sh\necho no luck\nexit 1\n")
    broken.chmod(0o755)
    up = ("up", "--port-base", port_base, "--node-prefix", "y", "--nodes")
    try:
        failed = started(folder, *up, "1", path=str(folder.parent))
        assert failed.returncode == ClusterError.exit_code
        assert failed.stderr == "error: slurmrestd ended right after its start: no luck\n"
        assert not LocalCluster.in_folder(folder).is_up
        assert started(folder, *up, "2").returncode == 0
        assert LocalCluster.in_folder(folder).settings.nodes == 2
    finally:
        LocalCluster.in_folder(folder).down()
