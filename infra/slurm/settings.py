"""How large a local cluster is, and where its files and ports are."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from configs.errors import InputError
from configs.files import write_json

SETTINGS_NAME = "settings.json"
"""In a cluster's folder; a folder that has it is a cluster's."""
_PORTS_BEFORE_NODES = 3


def default_folder() -> Path:
    """Where `up` keeps a cluster when it is not told: one for each user of the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in some containers
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / f"overland-slurm-{user}"


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


def check_owner(folder: Path) -> None:
    """Refuse a folder of somebody else, whose files say what is started or ended; InputError."""
    try:
        owner = folder.stat().st_uid
    except OSError:
        return  # It is not there, or is not to be seen: whoever needs it says so.
    if owner != os.getuid():
        raise InputError(
            f"{folder} belongs to another user (number {owner}): give a --folder of your own"
        )


def save(settings: ClusterSettings) -> None:
    """Keep the settings in the cluster's folder."""
    values = dataclasses.asdict(settings) | {"folder": str(settings.folder)}
    values["root"] = str(settings.root) if settings.root else None
    write_json(settings.in_folder(SETTINGS_NAME), values)


def load(folder: Path) -> ClusterSettings | None:
    """The settings of the cluster in `folder`; None when there is none. InputError when they cannot be
    read, or are something else, or somebody else's."""
    check_owner(folder)
    path = folder / SETTINGS_NAME
    try:
        values = json.loads(path.read_text())
        root = Path(values["root"]) if values["root"] else None
        return ClusterSettings(**(values | {"folder": folder, "root": root}))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} holds no settings of a cluster: give another --folder, or remove the file"
        ) from error
