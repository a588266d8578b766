"""A real Slurm cluster for the tests that want one."""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.slurm.cluster import LocalCluster, missing_packages
from infra.slurm.settings import ClusterSettings, free_port_base


@dataclass(frozen=True)
class SlurmSite:
    """What a site's administrator would tell a user."""

    cluster: LocalCluster
    token_file: Path

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def nodes(self) -> list[str]:
        return self.cluster.settings.node_names


def bring_up(*, accounting: bool = False, nodes: int = 3) -> Iterator[SlurmSite]:
    """A cluster that ends with the tests; skips where Slurm is not installed."""
    if missing := missing_packages(accounting=accounting):
        pytest.skip(f"not installed: {' '.join(missing)}; `make slurm-packages` installs them")
    folder = Path(tempfile.mkdtemp(prefix="overland-slurm-"))
    folder.chmod(0o755)
    settings = ClusterSettings(
        folder=folder,
        port_base=free_port_base(),
        nodes=nodes,
        node_prefix=f"t{os.getpid()}{'a' if accounting else ''}",
        accounting=accounting,
    )
    cluster = LocalCluster(settings, leash=True)
    try:
        cluster.up()
        token_file = folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(cluster.token(getpass.getuser()))
        yield SlurmSite(cluster, token_file)
    finally:
        cluster.down()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def slurm_site() -> Iterator[SlurmSite]:
    """Three nodes, one without GPUs, slurmctld and slurmrestd."""
    yield from bring_up()


@pytest.fixture(scope="session")
def accounting_site() -> Iterator[SlurmSite]:
    """The same with slurmdbd: accounts and qualities of service count."""
    yield from bring_up(accounting=True, nodes=1)
