"""How large a local cluster is, and where its files and ports are."""

from __future__ import annotations

import dataclasses
import getpass
import json
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from configs.errors import InputError
from configs.files import write_json

_MAX_FOLDER_LENGTH = 70
"""The path of a unix socket below it has 107 bytes at most."""
_PORTS_BEFORE_NODES = 3


def default_folder() -> Path:
    """Where `up` keeps a cluster when it is not told: one for each user of the machine."""
    return Path(tempfile.gettempdir()) / f"overland-slurm-{getpass.getuser()}"


@dataclass(frozen=True)
class ClusterSettings:
    """What a cluster is started with; kept in its folder for later commands."""

    folder: Path
    port_base: int = 17800
    """slurmctld, slurmrestd and slurmdbd take the first ports, the nodes those after."""
    nodes: int = 4
    """Nodes of the default partition, `main`."""
    cpu_nodes: int = 1
    """Nodes of the partition `cpu`, without GPUs."""
    node_prefix: str = ""
    """Before each node's name. Clusters that run at the same time must differ here."""
    cpus_per_node: int = 16
    memory_per_node_mib: int = 16000
    gpus_per_node: int = 4
    accounting: bool = False
    """With slurmdbd (and a MariaDB of its own): accounts, QOS, finished jobs for ever."""
    message_timeout_s: int = 3
    """A dead node is noticed after about twice this and 5 s."""
    kill_wait_s: int = 2
    root: Path | None = None
    """A chroot whose Slurm is used in the place of this machine's: infra.slurm.release."""
    kept_jobs_s: int = 3600
    """How long slurmctld remembers a job that has ended."""
    requeue: bool = False
    """Whether Slurm puts jobs back into its queue that do not ask for it, as by its default."""

    @property
    def node_names(self) -> list[str]:
        """Of the partition `main`."""
        return [f"{self.node_prefix}node{number}" for number in range(1, self.nodes + 1)]

    @property
    def cpu_node_names(self) -> list[str]:
        """Of the partition `cpu`."""
        return [f"{self.node_prefix}cpu{number}" for number in range(1, self.cpu_nodes + 1)]

    @property
    def all_node_names(self) -> list[str]:
        return [*self.node_names, *self.cpu_node_names]

    @property
    def controller_port(self) -> int:
        return self.port_base

    @property
    def rest_port(self) -> int:
        return self.port_base + 1

    @property
    def accounting_port(self) -> int:
        return self.port_base + 2

    def node_port(self, node: str) -> int:
        """Port of the node's slurmd."""
        return self.port_base + _PORTS_BEFORE_NODES + self.all_node_names.index(node)

    @property
    def ports(self) -> range:
        """All of them."""
        count = _PORTS_BEFORE_NODES + len(self.all_node_names)
        return range(self.port_base, self.port_base + count)

    @property
    def conf(self) -> Path:
        """slurm.conf; the other files of the configuration are beside it."""
        return self.folder / "etc" / "slurm.conf"

    def in_folder(self, *names: str) -> Path:
        """A path in the cluster's folder."""
        return self.folder.joinpath(*names)


def check(settings: ClusterSettings) -> None:
    """Refuse a folder that Slurm cannot work in, and ports that are taken."""
    text = str(settings.folder)
    if not settings.folder.is_absolute() or len(text) > _MAX_FOLDER_LENGTH or " " in text:
        raise InputError(
            f"the cluster's folder {text!r} must be an absolute path without spaces, of at most "
            f"{_MAX_FOLDER_LENGTH} characters"
        )
    if settings.root is not None and settings.accounting:
        raise InputError("slurmdbd of another Debian release does not run with this machine's")
    for port in settings.ports:
        if not _is_free(port):
            raise InputError(f"port {port} is taken: choose another one with --port-base")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port_base(first: int = 20000, last: int = 32000, step: int = 20) -> int:
    """A base for a cluster whose ports are all free now."""
    for base in range(first, last, step):
        if all(_is_free(port) for port in range(base, base + step)):
            return base
    raise InputError(f"there are no {step} free ports in a row between {first} and {last}")


def save(settings: ClusterSettings) -> None:
    """Keep the settings in the cluster's folder."""
    values = dataclasses.asdict(settings) | {"folder": str(settings.folder)}
    values["root"] = str(settings.root) if settings.root else None
    write_json(settings.in_folder("settings.json"), values)


def load(folder: Path) -> ClusterSettings | None:
    """The settings of the cluster in `folder`; None when there is none."""
    try:
        values = json.loads((folder / "settings.json").read_text())
    except FileNotFoundError:
        return None
    root = Path(values["root"]) if values.get("root") else None
    return ClusterSettings(**(values | {"folder": folder, "root": root}))
