"""A local cluster's settings: what is kept, what is refused, which ports it is given. Without Slurm."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.checks import check_config, check_launchable
from configs.errors import InputError
from configs.load import load_config
from infra.slurm import conf
from infra.slurm.checks import check
from infra.slurm.ports import is_free, reserved_ports
from infra.slurm.section import launcher_section
from infra.slurm.settings import ClusterSettings, load, save

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user may enter, as pytest's own may not be."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


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


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["relative", "/tmp/with space", "/tmp/%h", "/tmp/" + "x" * 80])
def test_folders_that_slurm_cannot_use_are_refused(folder: str) -> None:
    with pytest.raises(InputError, match=r"absolute path .* without spaces"):
        check(ClusterSettings(folder=Path(folder)))


def test_a_folder_that_others_may_not_enter_is_refused(open_folder: Path) -> None:
    open_folder.chmod(0o700)
    with pytest.raises(InputError, match=f"below {open_folder}, which only its owner may enter"):
        check(ClusterSettings(folder=open_folder / "cluster"))


def test_what_is_in_a_folder_is_not_overwritten(open_folder: Path) -> None:
    (open_folder / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not empty, and not a cluster's"):
        check(ClusterSettings(folder=open_folder))
    with pytest.raises(InputError, match=r"thesis\.tex is a file"):
        check(ClusterSettings(folder=open_folder / "thesis.tex"))
    (open_folder / "settings.json").write_text('{"editor.tabSize": 4}')
    with pytest.raises(InputError, match="holds no settings of a cluster"):
        load(open_folder)


def test_a_folder_of_another_user_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ClusterSettings(folder=tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(InputError, match="belongs to another user"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nodes": 0}, "--nodes must be at least 1, not 0"),
        ({"port_base": 70000}, "ports would be 70000 to 70007, and there are only 1 to 65535"),
        ({"port_base": 65530}, "ports would be 65530 to 65537"),
        ({"port_base": 0}, "ports would be 0 to 7"),
        ({"node_prefix": "a-1,"}, "--node-prefix 'a-1,' must be a small letter"),
    ],
)
def test_settings_that_are_not_possible_are_refused(
    open_folder: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check(dataclasses.replace(ClusterSettings(folder=open_folder), **settings))


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        base = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {base} is taken"):
            check(ClusterSettings(folder=Path("/tmp/cluster"), port_base=base))


# --- ports of its own -----------------------------------------------------------------------------

HOLDER = """
from infra.slurm.ports import reserved_ports
with reserved_ports(8) as base:
    print(base, flush=True)
    input()
"""


def test_clusters_that_start_side_by_side_get_different_ports() -> None:
    """Before any of them has started a daemon."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        with reserved_ports(8) as ours, reserved_ports(8) as more:
            assert len({theirs, ours, more}) == 3
            assert all(map(is_free, range(ours, ours + 8)))
        other.send_signal(signal.SIGKILL)
    with reserved_ports(8) as again:
        assert again <= theirs, "what was held ends with its process"


def test_ports_that_are_taken_are_left_out() -> None:
    with reserved_ports(8) as base:
        pass
    with socket.socket() as server:
        server.bind(("127.0.0.1", base + 7))
        with reserved_ports(8) as other:
            assert other > base
    with pytest.raises(InputError, match="at most 100"), reserved_ports(101):
        pass


# --- the section of a config ----------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_section_fits_the_quickstart(tmp_path: Path, nodes: int) -> None:
    settings = ClusterSettings(folder=tmp_path, nodes=nodes)
    text = launcher_section(settings, url="http://127.0.0.1:17801", token_file=tmp_path / "token")
    path = tmp_path / "run.yaml"
    path.write_text(QUICKSTART.read_text().partition("launcher:")[0] + text)
    config = load_config(path, [])
    check_config(config)
    check_launchable(config)
    assert config.launcher.nodes <= nodes
    assert config.launcher.slurm.memory_per_node_gib
    partitions = yaml.safe_load(text)["launcher"]["slurm"]
    text = conf.slurm_conf(settings, gpus=False)
    for name in ("partition", "low_priority_partition", "cpu_partition"):
        assert f"PartitionName={partitions[name]} " in text
