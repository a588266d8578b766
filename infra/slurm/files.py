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
    """Write them all."""
    for name in _FOLDERS:
        settings.in_folder(name).mkdir(parents=True, exist_ok=True, mode=0o755)
    for name, size in (("munge.key", 128), ("jwt.key", 32)):
        _write_secret(settings.in_folder("etc", name), size)
    prolog = settings.in_folder("etc", "prolog")
    prolog.write_text(_PROLOG.format(ill=settings.in_folder("ill")))
    prolog.chmod(0o755)
    devices = _make_devices(settings)
    settings.conf.write_text(conf.slurm_conf(settings, gpus=bool(devices)))
    etc = settings.conf.parent
    (etc / "gres.conf").write_text(conf.gres_conf(settings, devices))
    if conf.cgroups_work():
        (etc / "cgroup.conf").write_text(conf.cgroup_conf())
    save(settings)


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
