"""A cluster that lives as long as what it was brought up for: tests, chaos trials."""

from __future__ import annotations

import dataclasses
import getpass
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.slurm.cluster import LocalCluster
from infra.slurm.ports import reserved_ports
from infra.slurm.settings import ClusterSettings

_numbers = itertools.count()


@contextmanager
def temporary_cluster(
    *, nodes: int = 4, accounting: bool = False, root: Path | None = None, **more: Any
) -> Iterator[tuple[LocalCluster, Path]]:
    """The cluster and the file with its user's token; in a folder, and on ports, of its own. It ends
    with this process, however that ends."""
    with _new_folder() as folder:
        settings = ClusterSettings(
            folder=folder,
            nodes=nodes,
            node_prefix=f"t{os.getpid()}x{next(_numbers)}",
            accounting=accounting,
            root=root,
            **more,
        )
        with reserved_ports(len(settings.ports)) as port_base:
            cluster = LocalCluster(dataclasses.replace(settings, port_base=port_base), leash=True)
            try:
                cluster.up()
                yield cluster, write_token(cluster)
            finally:
                cluster.down()


@contextmanager
def _new_folder() -> Iterator[Path]:
    """One that jobs of all users can look into, for as long as the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix="overland-slurm-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def write_token(cluster: LocalCluster) -> Path:
    """A file with a new token for who runs this; it is readable by nobody else."""
    path = cluster.settings.in_folder("token")
    path.touch(mode=0o600)
    path.write_text(cluster.token(getpass.getuser()) + "\n")
    return path
