"""What a run keeps in its node's memory: the names, what is said about each buffer, and what is free.

    /dev/shm/overland-UID/RUN/rank_00003/
      buffer_0, buffer_1     the chunks that this rank holds, one after another
      buffer_0.json          what is in it; absent while it is being filled
      layout.json            which chunks lie where in all of them
      lock                   locked by the process that uses them

It needs no torch: what looks in from outside must not wait for its import.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from configs.files import sha256_of_json
from configs.records import Record
from configs.rundir import RunDir

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (node memory is what is wanted)
LAYOUT_NAME = "layout.json"
LOCK_NAME = "lock"
_BUFFERS = "buffer_?"
_BLOCK_BYTES = 512
_LEFTOVER_AGE_S = 24 * 3600.0


class Snapshot(Record):
    """What a full buffer holds."""

    step: int
    attempt: int
    token: str
    """Names the attempt: a run directory of the same name, made anew, has another one."""
    consumed_samples: int
    optimizer_step: float
    schedule: dict[str, Any]
    checksum: int = 0
    """Of the buffer's bytes; see Buffer.checksum."""

    def is_of(self, run: RunDir) -> bool:
        """Whether an attempt of this run has made it."""
        token = run.attempt(self.attempt).token_path
        return token.is_file() and token.read_text() == self.token


# --- names ----------------------------------------------------------------------------------------


def run_folder(run_path: Path) -> Path:
    """Where snapshots of a run directory are kept."""
    return _user_folder() / sha256_of_json(str(run_path))[:16]


def rank_folder(run_path: Path, rank: int) -> Path:
    """Where a rank's are."""
    return run_folder(run_path) / f"rank_{rank:05d}"


def buffer_name(number: int) -> str:
    """The file name of a rank's buffer."""
    return f"buffer_{number}"


def header_of(buffer: Path) -> Path:
    """The file that says what a buffer holds."""
    return buffer.with_name(f"{buffer.name}.json")


def _user_folder() -> Path:
    return SHARED_MEMORY / f"overland-{os.getuid()}"


# --- what is there --------------------------------------------------------------------------------


def read_header(buffer: Path) -> Snapshot | None:
    """What a buffer holds; None when it is empty, or being filled."""
    try:
        return Snapshot.model_validate_json(header_of(buffer).read_bytes())
    except (OSError, ValueError):
        return None


def held_snapshots(run: RunDir, rank: int) -> list[Snapshot]:
    """The snapshots of this run that are in a rank's buffers right now."""
    found = [read_header(buffer) for buffer in _buffers(rank_folder(run.path, rank))]
    return [snapshot for snapshot in found if snapshot is not None and snapshot.is_of(run)]


def common_steps(held: Sequence[Mapping[int, str]]) -> list[int]:
    """The steps that every rank holds, of the same attempt; `held` is each rank's step -> token."""
    first, *others = held
    return [s for s, token in first.items() if all(o.get(s) == token for o in others)]


def used_bytes(folder: Path) -> int:
    """Memory that the buffers in a rank's folder take."""
    return sum(path.stat().st_blocks * _BLOCK_BYTES for path in _buffers(folder))


def free_bytes() -> int:
    """Memory that is free for files in /dev/shm; 0 where there is none."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _buffers(folder: Path) -> list[Path]:
    return sorted(folder.glob(_BUFFERS))


# --- giving it back -------------------------------------------------------------------------------


def give_back(run_path: Path) -> bool:
    """Remove all that a run has there; returns whether there was anything."""
    folder = run_folder(run_path)
    was_there = folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    return was_there


def remove_leftovers(*, keep: Path) -> None:
    """Remove what runs that ended long ago have left in this node's memory; `keep` is this run's."""
    for folder in _user_folder().glob("*/rank_*"):
        if folder.parent == keep:
            continue
        with suppress(OSError):  # in use, removed meanwhile by another run, or none of ours
            if time.time() - _last_used(folder) >= _LEFTOVER_AGE_S:
                _remove_unused(folder)


def _remove_unused(folder: Path) -> None:
    with open(folder / LOCK_NAME, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        logger.warning("removing snapshots that an earlier run left in %s", folder)
        shutil.rmtree(folder, ignore_errors=True)


def _last_used(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
