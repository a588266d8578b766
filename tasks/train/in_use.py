"""Who reads a checkpoint locks it, so that nobody removes it meanwhile.

Readers hold a shared lock on the commit marker, who removes it an exclusive one. The kernel frees the
locks of a process that dies. A marker is replaced or renamed away, never written in place; a lock on one
that is not there any more is worth nothing, so the name is looked at again once the lock is held.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import CheckpointError
from configs.records import CommitMarker
from configs.rundir import COMMIT_MARKER_NAME, CheckpointDir


@contextmanager
def in_use(checkpoint: CheckpointDir) -> Iterator[CommitMarker]:
    """Keep the checkpoint from being removed during the block; gives its marker."""
    with locked(checkpoint.path / COMMIT_MARKER_NAME, shared=True) as held:
        marker = checkpoint.marker() if held else None
        if marker is None:
            raise CheckpointError(f"{checkpoint.path} is no committed checkpoint any more")
        yield marker


@contextmanager
def removable(checkpoint: CheckpointDir) -> Iterator[bool]:
    """Keep readers out during the block; gives False, at once, when somebody reads it."""
    with locked(checkpoint.path / COMMIT_MARKER_NAME, shared=False) as held:
        yield held


@contextmanager
def locked(path: Path, *, shared: bool, create: bool = False) -> Iterator[bool]:
    """Hold a lock on the file that is called `path`; gives whether it was got.

    A shared lock is waited for, an exclusive one is not. Without `create`, an absent file has none.
    """
    descriptor = _lock(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB, create)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(path: Path, how: int, create: bool) -> int | None:
    # An exclusive lock on a network file system needs write access.
    flags = os.O_RDWR if how & fcntl.LOCK_EX else os.O_RDONLY
    while True:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
