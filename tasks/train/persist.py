"""Writes a snapshot to storage and commits it: what the writer process does.

There are no collectives here. Rank 0 opens the checkpoint's folder; each rank writes its file and
leaves a part beside it that says what is in it; rank 0 waits for all parts and writes the index and,
last, the commit marker. Each step can be repeated: a writer that is started again for the same save
overwrites its own file and part.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import pickle
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from configs.errors import CheckpointError
from configs.files import sync_directory
from configs.records import CommitMarker, FileRecord
from configs.rundir import COMMIT_MARKER_NAME, read_record, write_record
from tasks.train.checkpoint_format import (
    COMMON_FILE,
    FORMAT,
    FORMAT_FILE,
    METADATA_FILE,
    SAVING_FILE,
    Part,
    SaveRequest,
    Saving,
    WrittenChunk,
    part_file,
    tensor_file,
)
from tasks.train.removal import set_aside
from tasks.train.storage import open_storage
from tasks.train.storage_base import Storage

_LOOK_INTERVAL_S = 0.05
_FULL_DEVICE = "/dev/full"

StillWanted = Callable[[], None]
"""Raises CheckpointError when the save was called off."""


def open_folder(folder: Path, save_id: str, storage: str | None) -> None:
    """Rank 0: make the folder this save's own. What an unusable checkpoint has left is moved aside."""
    if _is_open(folder, save_id):
        return
    if (folder / SAVING_FILE).exists():
        set_aside(folder)  # of a save that was killed; it may have left files in storage
    if folder.exists():
        aside = replaced_folder(folder)
        if aside.exists():
            set_aside(aside)
        folder.rename(aside)
    folder.mkdir(parents=True)
    sync_directory(folder.parent)
    write_record(folder / SAVING_FILE, Saving(save_id=save_id, storage=storage))


def await_folder(folder: Path, save_id: str, timeout_s: float, still_wanted: StillWanted) -> None:
    """Other ranks: wait until rank 0 has opened the folder."""
    deadline = time.monotonic() + timeout_s
    while not _is_open(folder, save_id):
        still_wanted()
        if time.monotonic() > deadline:
            raise CheckpointError(f"rank 0 has not opened {folder} within {timeout_s:g} s")
        time.sleep(_LOOK_INTERVAL_S)


def write_part(
    request: SaveRequest, table: Iterable[dict[str, Any]], memory: memoryview, rank: int
) -> Part:
    """Write and hash this rank's tensors; returns what is in the file."""
    storage = open_storage(request.storage, Path(request.folder))
    name = tensor_file(rank)
    chunks: list[WrittenChunk] = []
    with _stream(storage, name, full_disk=request.full_disk) as out:
        stream = HashingStream(out)
        for row in table:
            if row["is_written"]:
                chunks.append(_write_chunk(stream, row, memory))
    record = FileRecord(size_bytes=stream.size_bytes, sha256=stream.sha256)
    return Part(save_id=request.save_id, rank=rank, file=name, record=record, chunks=chunks)


def committed(request: SaveRequest) -> CommitMarker | None:
    """The marker, if this save was committed by a writer that died before it could say so."""
    marker = read_record(Path(request.folder) / COMMIT_MARKER_NAME, CommitMarker)
    return marker if marker is not None and marker.save_id == request.save_id else None


def await_parts(
    folder: Path, save_id: str, ranks: int, timeout_s: float, still_wanted: StillWanted
) -> list[Part]:
    """Rank 0: wait for all parts; CheckpointError when one failed for good, or is late."""
    deadline = time.monotonic() + timeout_s
    parts: dict[int, Part] = {}
    while True:
        for rank in set(range(ranks)) - set(parts):
            part = read_record(part_file(folder, rank), Part)
            if part is None or part.save_id != save_id:
                continue
            if part.error:
                raise CheckpointError(f"rank {rank}: {part.error}")
            parts[rank] = part
        if len(parts) == ranks:
            return [parts[rank] for rank in range(ranks)]
        still_wanted()
        if time.monotonic() > deadline:
            missing = sorted(set(range(ranks)) - set(parts))
            raise CheckpointError(
                f"ranks {missing} had not written their parts after {timeout_s:g} s"
            )
        time.sleep(_LOOK_INTERVAL_S)


def commit(request: SaveRequest, parts: list[Part]) -> CommitMarker:
    """Rank 0: write the index and, last, the marker."""
    assert request.marker is not None
    folder = Path(request.folder)
    storage = open_storage(request.storage, folder)
    files = {part.file: part.record for part in parts if part.record is not None}
    small = {
        COMMON_FILE: base64.b64decode(request.common_base64),
        FORMAT_FILE: json.dumps(FORMAT).encode(),
        METADATA_FILE: pickle.dumps(index_of(parts)),
    }
    for name, content in small.items():
        with storage.write(name) as out:
            out.write(content)
        sha256 = hashlib.sha256(content).hexdigest()
        files[name] = FileRecord(size_bytes=len(content), sha256=sha256)
    now = time.time()
    marker = request.marker.model_copy(
        update={
            "files": files,
            "save_id": request.save_id,
            "storage": request.storage,
            "committed_at": now,
            "duration_s": max(now - request.begun_at, 0.0),
        }
    )
    if request.storage is not None:
        with storage.write(COMMIT_MARKER_NAME) as out:  # so that it can be used without the run
            out.write(marker.model_dump_json(indent=2).encode())
    sync_directory(folder)
    write_record(folder / COMMIT_MARKER_NAME, marker)
    _tidy(folder, len(parts))
    return marker


def index_of(parts: Iterable[Part]) -> Metadata:
    """torch's index of all tensors; CheckpointError when the parts do not make whole tensors."""
    tensors: dict[str, TensorStorageMetadata] = {}
    storage: dict[MetadataIndex, _StorageInfo] = {}
    for part in parts:
        for chunk in part.chunks:
            dtype = getattr(torch, chunk.dtype)
            size = torch.Size(chunk.global_shape)
            entry = tensors.get(chunk.key)
            if entry is None:
                entry = TensorStorageMetadata(TensorProperties(dtype=dtype), size, [])
                tensors[chunk.key] = entry
            elif entry.size != size or entry.properties.dtype != dtype:
                raise CheckpointError(f"the ranks do not agree on the shape of {chunk.key}")
            offsets, sizes = torch.Size(chunk.offsets), torch.Size(chunk.sizes)
            index = MetadataIndex(chunk.key, offsets, len(entry.chunks))
            entry.chunks.append(ChunkStorageMetadata(offsets, sizes))
            storage[index] = _StorageInfo(part.file, chunk.place, chunk.length_bytes)
    for key, entry in tensors.items():
        covered = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if covered != math.prod(entry.size):
            raise CheckpointError(
                f"the ranks wrote {covered} elements of {key} instead of {math.prod(entry.size)}"
            )
    return Metadata(state_dict_metadata=dict(tensors), storage_data=storage)


class HashingStream(io.RawIOBase):
    """Hashes and counts what is written through it."""

    def __init__(self, out: IO[bytes]) -> None:
        super().__init__()
        self._out = out
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        self.failure: Exception | None = None
        """What a write raised: torch.save covers it by an error of its own."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        try:
            self._out.write(data)
        except Exception as failure:
            self.failure = failure
            raise
        self.size_bytes += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def replaced_folder(folder: Path) -> Path:
    """Where what was in the folder waits for the new commit."""
    return folder.with_name(f".replaced_{folder.name}")


def _write_chunk(stream: HashingStream, row: dict[str, Any], memory: memoryview) -> WrittenChunk:
    dtype: torch.dtype = getattr(torch, row["dtype"])
    # A tensor over just these bytes: torch.save writes all of a tensor's memory.
    tensor = torch.frombuffer(
        memory, dtype=dtype, count=math.prod(row["sizes"]), offset=row["place"]
    )
    place = stream.size_bytes
    try:
        torch.save(tensor.view(row["sizes"]), cast(Any, stream))
    except Exception:
        if stream.failure is not None:
            raise stream.failure from None
        raise
    return WrittenChunk(
        key=row["key"],
        dtype=row["dtype"],
        global_shape=row["global_shape"],
        offsets=row["offsets"],
        sizes=row["sizes"],
        place=place,
        length_bytes=stream.size_bytes - place,
    )


@contextmanager
def _stream(storage: Storage, name: str, *, full_disk: bool) -> Iterator[IO[bytes]]:
    if full_disk:
        with open(_FULL_DEVICE, "wb") as out:
            yield out
    else:
        with storage.write(name) as out:
            yield out


def _is_open(folder: Path, save_id: str) -> bool:
    saving = read_record(folder / SAVING_FILE, Saving)
    return saving is not None and saving.save_id == save_id


def _tidy(folder: Path, ranks: int) -> None:
    """Remove what only the save needed."""
    for rank in range(ranks):
        part_file(folder, rank).unlink(missing_ok=True)
    for torn in folder.glob(".*.tmp"):  # by a writer that was killed
        torn.unlink()
    (folder / SAVING_FILE).unlink(missing_ok=True)
    if replaced_folder(folder).exists():
        set_aside(replaced_folder(folder))


def discard(request: SaveRequest) -> None:
    """Rank 0: leave nothing of a save that failed, and put back what it had moved aside."""
    folder = Path(request.folder)
    if request.storage is not None:
        with suppress(CheckpointError):  # It may be the storage that failed.
            open_storage(request.storage, folder).remove_all()
    shutil.rmtree(folder, ignore_errors=True)
    if (aside := replaced_folder(folder)).exists():
        aside.rename(folder)
