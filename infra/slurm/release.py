"""Slurm of another Debian release, out of a chroot: made by mmdebstrap from Debian's own packages.

Each command enters the chroot in a mount namespace of its own; nothing is mounted on the machine.
Processes, loopback, /tmp and the folders that jobs need are the machine's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.errors import InputError, OverlandError
from infra.slurm.packages import missing_packages

_ALWAYS = ("/proc", "/sys", "/dev", "/tmp")  # noqa: S108  (the machine's own)
_FILES = ("/etc/hosts", "/etc/resolv.conf")
_PACKAGES = (
    *("munge", "slurmctld", "slurmd", "slurmrestd", "slurm-client", "slurm-wlm-jwt-plugin"),
    # For our own Python, which is bound in, and for what enters the chroot.
    *("python3", "libstdc++6", "procps", "util-linux"),
)
_ENTER = """\
root=$1; shift
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root$(dirname "$1")"; touch "$root$1"; fi
    mount --rbind "$1" "$root$1" || exit 1
    shift
done
shift
exec chroot "$root" "$@"
"""
_MAKE_TIMEOUT_S = 1200.0


def enter(root: Path, command: Sequence[str], *, user: str | None, leash: bool) -> list[str]:
    """The command line that runs `command` in the chroot, in the place of its own process."""
    binds = [*_ALWAYS, *_FILES, *_own_folders()]
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    if become and leash:
        become.append("--pdeathsig=KILL")  # which a change of users forgets
    return [
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", str(root)),
        *(path for path in binds if Path(path).exists()),
        *("--", *become, *command),
    ]


def _own_folders() -> list[str]:
    """What jobs need of this machine: this project, and the Python that runs it."""
    project = Path(__file__).resolve().parents[2]
    folders = [str(project)]
    if not Path(sys.prefix).is_relative_to(project):
        folders.append(sys.prefix)
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        return [*folders, sys.base_prefix]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    binary = [str(Path(sys.base_prefix) / "bin" / name) for name in ("python3", version)]
    return [*folders, *binary, f"/usr/lib/{version}"]


def make(root: Path, suite: str) -> None:
    """Make the chroot, unless it is there."""
    if not missing_packages(root=root):
        return
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(
            f"{root} is there, and is no chroot with Slurm: give a new or an empty folder"
        )
    if shutil.which("mmdebstrap") is None:
        raise InputError("mmdebstrap is not installed: apt-get install mmdebstrap")
    command = ["mmdebstrap", "--mode=root", "--variant=apt", f"--include={','.join(_PACKAGES)}"]
    try:
        done = subprocess.run(
            [*command, suite, str(root)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MAKE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OverlandError(
            f"mmdebstrap {suite} {root} has not ended within {_MAKE_TIMEOUT_S:g} s: is the mirror reachable?"
        ) from error
    if done.returncode:
        raise OverlandError(f"mmdebstrap {suite} {root} failed: {done.stderr.strip()[-500:]}")
