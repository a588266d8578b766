"""A real Slurm cluster for the tests that want one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.slurm.cluster import LocalCluster
from infra.slurm.packages import missing_packages
from infra.slurm.temporary import temporary_cluster


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


ROOT = Path(os.environ["OVERLAND_SLURM_ROOT"]) if "OVERLAND_SLURM_ROOT" in os.environ else None
"""A chroot with another release of Slurm, for all tests: `make test-slurm-24.11`."""


def bring_up(*, accounting: bool = False, **settings: Any) -> Iterator[SlurmSite]:
    """A cluster that ends with the tests; skips where Slurm is not installed."""
    if missing := missing_packages(accounting=accounting, root=ROOT):
        pytest.skip(f"not installed: {' '.join(missing)}; `make slurm-packages` installs them")
    with temporary_cluster(accounting=accounting, root=ROOT, **settings) as (cluster, token_file):
        yield SlurmSite(cluster, token_file)


@pytest.fixture(scope="session")
def slurm_site() -> Iterator[SlurmSite]:
    """Three nodes, one without GPUs, slurmctld and slurmrestd."""
    yield from bring_up(nodes=3)


@pytest.fixture(scope="session")
def accounting_site() -> Iterator[SlurmSite]:
    """The same with slurmdbd: accounts and qualities of service count, and slurmctld soon forgets."""
    if ROOT is not None:
        pytest.skip("slurmdbd of Debian 13 does not start with its own MariaDB client")
    yield from bring_up(accounting=True, nodes=1, kept_jobs_s=2)
