"""The files of a checkpoint, and the messages by which one comes to be.

    checkpoints/step_00000200/
      __0_0.distcp ...   tensors, one file a rank
      .metadata          torch's index of them
      common.pt          values that all ranks share
      metadata.json      megatron-core's name of the format
      COMMITTED.json     size and hash of each file; written last
      SAVING.json        while it is being saved: which save it is
      part_00003.json    while it is being saved: what rank 3 has written

With `checkpoint.storage` the first four are there, and the others in the run directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from configs.records import CommitMarker, FileRecord, Record

METADATA_FILE = ".metadata"
COMMON_FILE = "common.pt"
FORMAT_FILE = "metadata.json"
SAVING_FILE = "SAVING.json"
CALLED_OFF = "another rank could not write its part"
"""Why a save ends that another rank cannot take part in."""

FORMAT: dict[str, Any] = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""megatron-core's description of this format, the content of FORMAT_FILE."""


def tensor_file(rank: int) -> str:
    """The file that a rank writes."""
    return f"__{rank}_0.distcp"


def part_file(folder: Path, rank: int) -> Path:
    """Where a rank says what it has written."""
    return folder / f"part_{rank:05d}.json"


class Saving(Record):
    """The save that owns a checkpoint folder now."""

    save_id: str
    storage: str | None = None
    """URL of the folder for the tensors, which would be found by nobody if the save were killed."""


class WrittenChunk(Record):
    """A chunk in a rank's file."""

    key: str
    dtype: str
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: int
    """Byte offset in the file."""
    length_bytes: int


class Part(Record):
    """What one rank has written, or why it could not."""

    save_id: str
    rank: int
    file: str = ""
    record: FileRecord | None = None
    chunks: list[WrittenChunk] = Field(default_factory=list)
    error: str = ""


class SaveRequest(Record):
    """What a rank asks of its writer process."""

    kind: Literal["save"] = "save"
    save_id: str
    step: int
    buffer: int
    """Number of the buffer that holds the snapshot."""
    folder: str
    """The checkpoint's folder in the run directory."""
    storage: str | None = None
    """URL of the folder for the tensors; None: `folder`."""
    begun_at: float
    """Unix time of the snapshot."""
    attempts: int = 1
    """How often the writer tries to write this rank's part."""
    full_disk: bool = False
    """Injected fault: the rank's file meets a full disk."""
    parts_timeout_s: float = 0.0
    """How long rank 0 waits for the others' parts."""
    marker: CommitMarker | None = None
    """Rank 0's: the commit marker but for files, time and duration."""
    common_base64: str = ""
    """Rank 0's: content of COMMON_FILE."""


class WriterReport(Record):
    """What a writer process answers."""

    kind: Literal["ready", "waiting", "written", "failed", "committed", "not_committed"]
    """ready: it has started. waiting: for what other ranks do, and alive. written, failed: this rank's part. committed, not_committed: rank 0's,
    of the whole."""
    save_id: str = ""
    size_bytes: int = 0
    error: str = ""
