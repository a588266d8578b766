"""What of a cluster's settings is refused before anything is started or written."""

from __future__ import annotations

import getpass
import os
import re
import stat
from pathlib import Path

from configs.errors import InputError
from infra.slurm.packages import missing_packages
from infra.slurm.ports import LAST_PORT, is_free
from infra.slurm.settings import SETTINGS_NAME, ClusterSettings, check_owner

_MAX_FOLDER_LENGTH = 70
"""The path of a unix socket below it has 107 bytes at most."""
_PREFIX = re.compile(r"([a-z][a-z0-9]*)?")
_FOLDER = re.compile(r"/[A-Za-z0-9._/+@-]*")
"""What means nothing else in one of Slurm's files."""


def check(settings: ClusterSettings) -> None:
    """Refuse a cluster that cannot be brought up; InputError."""
    if settings.nodes < 1:
        raise InputError(f"--nodes must be at least 1, not {settings.nodes}")
    if not _PREFIX.fullmatch(settings.node_prefix):
        raise InputError(
            f"--node-prefix {settings.node_prefix!r} must be a small letter, and then small letters and digits"
        )
    if settings.root is not None and settings.accounting:
        raise InputError("slurmdbd of another Debian release does not run with this machine's")
    _check_folder(settings.folder)
    _check_ports(settings)


def check_installed(settings: ClusterSettings) -> None:
    """Refuse where programs, or this user's name, are missing; InputError."""
    root = settings.root
    try:
        getpass.getuser()
    except (KeyError, OSError):
        raise InputError(
            f"user {os.getuid()} has no name, and Slurm needs one: add it to /etc/passwd"
        ) from None
    if root is not None and os.getuid() != 0:
        raise InputError("--root needs root's rights: without them a chroot cannot be entered")
    if not (missing := missing_packages(accounting=settings.accounting, root=root)):
        return
    if root is not None:
        raise InputError(
            f"--root {root} is no chroot with Slurm: `python -m infra.slurm release FOLDER` makes one"
        )
    raise InputError(f"not installed: {' '.join(missing)}; `make slurm-packages` installs them")


def _check_folder(folder: Path) -> None:
    text = str(folder)
    if not _FOLDER.fullmatch(text) or len(text) > _MAX_FOLDER_LENGTH:
        raise InputError(
            f"the cluster's folder {text!r} must be an absolute path of letters, digits and ._+@- without "
            f"spaces, of at most {_MAX_FOLDER_LENGTH} characters"
        )
    for above in folder.parents:
        if above.exists() and not above.stat().st_mode & stat.S_IXOTH:
            raise InputError(
                f"--folder {folder} is below {above}, which only its owner may enter: munged and slurmrestd "
                "need one that all may, like one in /tmp"
            )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"--folder {folder} is a file: give a new or an empty folder")
    check_owner(folder)
    if not (folder / SETTINGS_NAME).exists() and any(folder.iterdir()):
        raise InputError(
            f"--folder {folder} is not empty, and not a cluster's: give a new or an empty folder"
        )


def _check_ports(settings: ClusterSettings) -> None:
    ports = settings.ports
    if ports[0] < 1 or ports[-1] > LAST_PORT:
        raise InputError(
            f"--port-base {settings.port_base}: the cluster's ports would be {ports[0]} to {ports[-1]}, and "
            f"there are only 1 to {LAST_PORT}"
        )
    for port in ports:
        if not is_free(port):
            raise InputError(f"port {port} is taken: choose another one with --port-base")
