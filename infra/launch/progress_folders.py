"""The folder in a node's memory in which a job's ranks say where they are, and what killed agents have left.

    /dev/shm/overland-progress-JOB/      locked by the job's agent on this node as long as it lives

An agent that is killed, like all of a node by Slurm, cannot remove its folder. The next agent of this
user on the node does: a folder that nobody holds is a dead job's.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from configs.progress import progress_folder, progress_folders

logger = logging.getLogger(__name__)


@contextmanager
def kept_folder(job_id: str, job_dir: Path) -> Iterator[Path]:
    """The job's folder, made, and held while the block runs; it is removed at the end."""
    remove_dead()
    folder = progress_folder(job_id, job_dir)
    # Without such memory it is on the job's storage, which need not know locks, and nobody's to remove.
    descriptor = _make_and_hold(folder) if folder.parent != job_dir else _make(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_dead() -> None:
    """Remove what agents of this user have left that were killed on this node."""
    for folder in progress_folders():
        with suppress(OSError):  # another user's, held by a live agent, or removed meanwhile
            descriptor = _open(folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                logger.warning("removing %s, which a killed job has left", folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _make_and_hold(folder: Path) -> int:
    """Make the folder and hold it: made again when it was taken for a dead job's in between."""
    while True:
        with suppress(FileNotFoundError):
            descriptor = _make(folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, folder):
                return descriptor
            os.close(descriptor)


def _make(folder: Path) -> int:
    folder.mkdir(mode=0o700, exist_ok=True)
    return _open(folder)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False
