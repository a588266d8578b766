"""Says of an error that a disk is full: which one, and how much is free and needed where that is known."""

from __future__ import annotations

import errno
import math
import os
import shutil
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ALMOST_NOTHING_BYTES = 1 << 20


def with_path(error: OSError, path: Path, needed_bytes: int) -> OSError | None:
    """Of a full disk, an error that tells what was to be written where: writing itself does not."""
    if error.errno not in _FULL:
        return None
    words = f"{error.strerror}, {_readable(needed_bytes)} are needed"
    return OSError(error.errno, words, str(path))


def full_disk(error: BaseException | None) -> str | None:
    """The sentence, when a full disk is the error's cause or the cause of its cause; else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _FULL:
            return _sentence(error)
        error = error.__cause__ or error.__context__
    return None


def with_room_note(said: str, folder: Path) -> str:
    """What a process said last; and that next to nothing can be written to its folder, where that is so:
    it may not have been able to say why it failed."""
    free_bytes = _free_bytes(folder)
    is_told = os.strerror(errno.ENOSPC) in said
    if is_told or free_bytes is None or free_bytes >= _ALMOST_NOTHING_BYTES:
        return said
    return (
        f"the disk with {folder} is full, {_readable(free_bytes)} are free: free some room and run it "
        f"again (said last: {said})"
    )


def _readable(size_bytes: int) -> str:
    if size_bytes < 1 << 20:
        return f"{math.ceil(size_bytes / 1024)} KiB"
    return f"{size_bytes / (1 << 20):.1f} MiB"


def _sentence(error: OSError) -> str:
    if error.filename is None:
        return f"a disk is full ({error.strerror}): free some room and run it again"
    free_bytes = _free_bytes(Path(error.filename))
    free = "" if free_bytes is None else f", {_readable(free_bytes)} are free there"
    return f"{error.filename} cannot be written: {error.strerror}{free}; free some room and run it again"


def _free_bytes(path: Path) -> int | None:
    for folder in (path, *path.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return None
