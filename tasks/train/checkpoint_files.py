"""Whether a checkpoint's files are those that were committed. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from configs.errors import CheckpointError
from configs.files import sha256_of_file
from configs.records import CommitMarker


def check_files(
    folder: Path, marker: CommitMarker, names: Iterable[str], *, contents: bool = True
) -> None:
    """Raise CheckpointError when a named file has not the recorded size or, if asked for, hash."""
    for name in names:
        record, path = marker.files.get(name), folder / name
        if record is None:
            raise CheckpointError(f"{name} is not among the committed files")
        if not path.is_file():
            raise CheckpointError(f"{name} is missing")
        size = path.stat().st_size
        if size != record.size_bytes:
            raise CheckpointError(f"{name} has {size} bytes instead of {record.size_bytes}")
        if contents and sha256_of_file(path) != record.sha256:
            raise CheckpointError(f"{name} is corrupt: its SHA-256 is not the recorded one")
