"""What of Debian's Slurm is installed: on this machine, or in a chroot with another release."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SEARCH_PATH = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
_PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmrestd": "slurmrestd",
    "scontrol": "slurm-client",
}
_ACCOUNTING_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
_PLUGINS = {"auth_jwt.so": "slurm-wlm-jwt-plugin"}
_ACCOUNTING_PLUGINS = {"accounting_storage_mysql.so": "slurm-wlm-mysql-plugin"}


def missing_packages(*, accounting: bool = False, root: Path | None = None) -> list[str]:
    """Debian packages that a cluster needs and that are not here, or not in the chroot `root`."""
    programs = _PROGRAMS | (_ACCOUNTING_PROGRAMS if accounting else {})
    plugins = _PLUGINS | (_ACCOUNTING_PLUGINS if accounting else {})
    path = SEARCH_PATH if root is None else f"{root}/usr/bin:{root}/usr/sbin"
    missing = [p for name, p in programs.items() if shutil.which(name, path=path) is None]
    return missing + [p for name, p in plugins.items() if not has_plugin(name, root)]


def has_plugin(name: str, root: Path | None = None) -> bool:
    """Whether Slurm has this plugin."""
    return any(((root or Path("/")) / "usr/lib").glob(f"*/slurm*/{name}"))


def rest_plugins(*, accounting: bool, root: Path | None = None) -> str:
    """What slurmrestd is started with: 22.05 wants its plugins by version, newer ones by what they talk to."""
    old = has_plugin("openapi_v0_0_38.so", root) and not has_plugin("openapi_slurmctld.so", root)
    plugins = ["v0.0.38", "dbv0.0.38"] if old else ["slurmctld", "slurmdbd"]
    return ",".join(plugins if accounting else plugins[:1])
