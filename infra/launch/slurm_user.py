"""Whose jobs they are: whether the cluster will run them as that user, who can write where the run lies."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
from pathlib import Path

from configs.slurm_schema import SlurmConfig

_ROOT = 0
_TEST_TIMEOUT_S = 30.0


def user_of(site: SlurmConfig) -> str:
    """Whose jobs they are: who runs the flow, if the config names nobody."""
    return site.user or getpass.getuser()


def user_problem(user: str, owner: str | None, folder: Path | None = None) -> str | None:
    """Why no job of `user` can do its work, in a sentence; None when nothing is known to be in its way.

    `owner`: whose token it is, if it says so. Slurm takes root's for every name, also for one that nobody has:
    the job then ends before it begins, as if its node had failed. `folder`: the run directory, whether or not it is
    there yet. Whether others can write there can be asked by root alone.
    """
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        if owner is None or owner == user:
            return None  # A machine need not know the users of the cluster that it asks.
        return (
            f"launcher.slurm.user: {user!r} is no user of this machine, and the token is that of {owner!r}: name the "
            "user whose jobs they are, or leave it out"
        )
    if folder is None or account.pw_uid == os.geteuid() or _can_write(account, folder):
        return None
    return (
        f"launcher.slurm.user: jobs would run as {user!r}, who cannot write to {folder}: leave "
        f"the user out, or make that folder first, as theirs"
    )


def _can_write(account: pwd.struct_passwd, folder: Path) -> bool:
    """Whether a user can write to the folder; one that is not there yet will be of who runs the flow."""
    if os.geteuid() != _ROOT:
        return True
    test = shutil.which("test")
    if test is None:
        return True
    done = subprocess.run(
        [test, "-w", str(folder)],
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=os.getgrouplist(account.pw_name, account.pw_gid),
        cwd="/",
        timeout=_TEST_TIMEOUT_S,
        check=False,
    )
    return done.returncode == 0
