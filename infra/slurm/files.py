"""A local cluster's files: its configuration, its secrets, and what stands for GPUs."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from infra.slurm import conf
from infra.slurm.settings import ClusterSettings, save

_FOLDERS = ("etc", "run", "log", "controller", "spool", "temporary", "devices", "ill")
_PROLOG = """\
#!/bin/sh
# Before each job on a node: fails on those that are made ill for a test.
[ ! -e "{ill}/$SLURMD_NODENAME" ]
"""


def write_files(settings: ClusterSettings) -> None:
    """Write them all; OSError where they cannot be."""
    _make_folder(settings.folder)
    save(settings)  # first: from here on it is a cluster's folder, whatever comes between
    for name in _FOLDERS:
        _make_folder(settings.in_folder(name))
    for name, size in (("munge.key", 128), ("jwt.key", 32)):
        _write_secret(settings.in_folder("etc", name), size)
    _write(
        settings.in_folder("etc", "prolog"), _PROLOG.format(ill=settings.in_folder("ill")), 0o755
    )
    devices = _make_devices(settings)
    _write(settings.conf, conf.slurm_conf(settings, gpus=bool(devices)))
    etc = settings.conf.parent
    _write(etc / "gres.conf", conf.gres_conf(settings, devices))
    if conf.cgroups_work():
        _write(etc / "cgroup.conf", conf.cgroup_conf())


def _make_folder(folder: Path) -> None:
    """Open to munged and slurmrestd, whatever the umask."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)


def munge_command(settings: ClusterSettings) -> list[str]:
    """How the cluster's own munged is started."""
    run, log = settings.in_folder("run"), settings.in_folder("log")
    return [
        "munged",
        "--foreground",
        f"--key-file={settings.in_folder('etc', 'munge.key')}",
        f"--socket={run / 'munge.sock'}",
        f"--pid-file={run / 'munged.pid'}",
        f"--seed-file={run / 'munge.seed'}",
        f"--log-file={log / 'munged.log'}",
    ]


def _write_secret(path: Path, size_bytes: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(size_bytes))


def _make_devices(settings: ClusterSettings) -> list[Path]:
    """A character device for each GPU, as Slurm wants one, which nobody opens: doubles of /dev/null,
    which only root can make, or else the machine's consoles."""
    devices = [settings.in_folder("devices", f"gpu{n}") for n in range(settings.gpus_per_node)]
    null = Path("/dev/null").stat().st_rdev
    try:
        for device in devices:
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, null)
    except OSError:
        consoles = [Path(f"/dev/tty{number}") for number in range(settings.gpus_per_node)]
        return consoles if all(console.is_char_device() for console in consoles) else []
    return devices
