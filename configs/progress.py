"""What each rank is doing now, in a few bytes of shared memory that others can read at any moment.

A rank writes its record with every phase it enters; the launcher's agent reads it when the job hangs,
and diagnosis finds by it who is behind. The record outlives its writer and needs no answer from it:
a stopped or deadlocked rank can still be read.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

PROGRESS_VARIABLE = "OVERLAND_PROGRESS_DIR"
"""Environment variable: the folder of the records, on the node."""
TRACES_VARIABLE = "OVERLAND_TRACES_DIR"
"""Environment variable: where a rank writes its collectives when it is asked to."""

PHASES = (
    "start",
    "data",
    "forward_backward",
    "gradients",
    "optimizer",
    "report",
    "validation",
    "save",
    "end",
)
"""In the order in which a step goes through them."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (memory that a node's processes share)
_FOLDER_PREFIX = "overland-progress-"
RECORD = struct.Struct("=4sIIIqqdQ")
"""Magic, version, rank, process id, step, phase, since when (Unix seconds), number of the write."""
MAGIC = b"OVPR"
VERSION = 1
_READ_TRIES = 8


@dataclass(frozen=True)
class Position:
    """Where a rank was at one moment."""

    rank: int
    pid: int
    step: int
    """The step that it works on."""
    phase: str
    since: float
    """Unix seconds."""

    @property
    def order(self) -> tuple[int, int]:
        """Less is further behind."""
        return self.step, PHASES.index(self.phase)


def progress_folder(job_id: str, job_dir: Path) -> Path:
    """The job's folder on this node: in memory where there is such a file system."""
    if _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        return _SHARED_MEMORY / f"{_FOLDER_PREFIX}{job_id}"
    return job_dir / "progress"


def progress_folders() -> list[Path]:
    """All jobs' folders in this node's memory, of dead ones and of other users too."""
    return sorted(_SHARED_MEMORY.glob(f"{_FOLDER_PREFIX}*"))


def record_path(folder: Path, rank: int) -> Path:
    """The rank's file."""
    return folder / f"rank_{rank:05d}"


def trigger_path(folder: Path, rank: int) -> Path:
    """The named pipe at which the rank waits to be asked for its collectives."""
    return folder / f"trace_{rank:05d}.fifo"


def read_position(path: Path) -> Position | None:
    """The record as of now; None when there is none (yet), or none that this version understands.

    Two reads that agree are one that no write has torn.
    """
    seen = _read(path)
    for _ in range(_READ_TRIES):
        again = _read(path)
        if again == seen:
            break
        seen = again
    if len(seen) != RECORD.size:
        return None
    magic, version, rank, pid, step, phase, since, _ = RECORD.unpack(seen)
    if (magic, version) != (MAGIC, VERSION) or not 0 <= phase < len(PHASES):
        return None
    return Position(rank, pid, step, PHASES[phase], since)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
