"""The host memory that snapshots are copied into: allocated once, shared with the writer process.

In /dev/shm (tasks/train/node_memory.py says where) the buffers outlive the process, so that a restart
on the same node finds the newest snapshot there. Where that is too small (or not wanted), they are
anonymous memory, which only the writer process sees. Files are locked by the process that uses them;
what a run has left behind for a day is removed by the next run on the node.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import mmap
import os
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.errors import CheckpointError
from configs.files import sha256_of_json
from tasks.train.chunks import Chunk
from tasks.train.node_memory import (
    LAYOUT_NAME,
    LOCK_NAME,
    Snapshot,
    buffer_name,
    header_of,
    read_header,
)

logger = logging.getLogger(__name__)

_ALIGNMENT_BYTES = 64
_MADV_POPULATE_WRITE = 23
_MAPPED_AT_ONCE_BYTES = 1 << 20
_PAUSE_S = 0.0002


@dataclass(frozen=True)
class Layout:
    """Where each chunk lies in a buffer."""

    chunks: tuple[Chunk, ...]
    places: tuple[int, ...]
    """Byte offset of each chunk."""
    size_bytes: int

    @classmethod
    def of(cls, chunks: list[Chunk]) -> Layout:
        """Chunks one after another, each at a multiple of 64 bytes."""
        places, end = [], 0
        for chunk in chunks:
            places.append(end)
            end += -(-chunk.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return cls(tuple(chunks), tuple(places), max(end, mmap.PAGESIZE))

    def table(self) -> list[dict[str, Any]]:
        """The same for the writer, as JSON."""
        return [
            {
                "key": chunk.key,
                "dtype": str(chunk.tensor.dtype).removeprefix("torch."),
                "global_shape": chunk.global_shape,
                "offsets": chunk.offsets,
                "sizes": chunk.sizes,
                "place": place,
                "is_written": chunk.is_written,
            }
            for chunk, place in zip(self.chunks, self.places, strict=True)
        ]

    def fingerprint(self) -> str:
        """Equal exactly when a snapshot of one fits the other."""
        return sha256_of_json(self.table())


class Buffer:
    """One snapshot's memory."""

    def __init__(self, path: Path, size_bytes: int, *, is_anonymous: bool) -> None:
        self.path = path
        self.is_anonymous = is_anonymous
        self.snapshot: Snapshot | None = None
        """What it holds; None while it is empty or being filled."""
        self._descriptor = self._open(size_bytes)
        self._memory = mmap.mmap(self._descriptor, size_bytes)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)

    def _open(self, size_bytes: int) -> int:
        if self.is_anonymous:
            descriptor = os.memfd_create(self.path.name)
            self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        else:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(descriptor).st_size != size_bytes:
                self._header.unlink(missing_ok=True)  # new, or cut off since
        os.ftruncate(descriptor, size_bytes)
        return descriptor

    @property
    def address(self) -> int:
        return self._bytes.data_ptr()

    def view(self, chunk: Chunk, place: int) -> torch.Tensor:
        """The chunk's place in this buffer, as a tensor like the chunk's."""
        part = self._bytes[place : place + chunk.size_bytes]
        return part.view(chunk.tensor.dtype).view(chunk.tensor.shape)

    def checksum(self) -> int:
        """Sum of all bytes as 64-bit integers, wrapping round: what a flipped bit or lost pages change.

        At the speed of memory, and without holding Python's lock.
        """
        return int(np.frombuffer(self._memory, dtype=np.uint64).sum(dtype=np.uint64))

    @property
    def is_intact(self) -> bool:
        """Whether it still holds what its header says."""
        return self.snapshot is not None and self.snapshot.checksum == self.checksum()

    def empty(self) -> None:
        """Forget what it holds, for this process and for the next one."""
        self.snapshot = None
        if not self.is_anonymous:
            self._header.unlink(missing_ok=True)

    def fill(self, snapshot: Snapshot) -> None:
        """Say what it holds, now that all of it was copied."""
        snapshot = snapshot.model_copy(update={"checksum": self.checksum()})
        if not self.is_anonymous:
            temporary = self._header.with_suffix(".tmp")
            temporary.write_text(snapshot.model_dump_json())
            temporary.replace(self._header)  # memory: nothing to sync
        self.snapshot = snapshot

    def read_header(self) -> Snapshot | None:
        """What an earlier process has left in it."""
        if self.is_anonymous:
            return None
        self.snapshot = read_header(self.path)
        return self.snapshot

    def map_pages(self) -> None:
        """Have the kernel map all pages, which takes it a while; not known before Linux 5.14."""
        libc = ctypes.CDLL(None, use_errno=True)
        end = self.address + self._bytes.numel()
        for start in range(self.address, end, _MAPPED_AT_ONCE_BYTES):
            size_bytes = min(_MAPPED_AT_ONCE_BYTES, end - start)
            # In slices: meanwhile no other thread of the process can get memory from the kernel.
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), _MADV_POPULATE_WRITE)
            time.sleep(_PAUSE_S)

    def pin(self) -> None:
        """Lock its pages for transfers by the GPU, which then need no copy in between."""
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = cudart.cudaHostRegister(self.address, self._bytes.numel(), 0)
        if int(error) != 0:
            logger.warning("a snapshot buffer cannot be pinned (CUDA error %s): slower", error)

    @property
    def _header(self) -> Path:
        return header_of(self.path)


class SnapshotBuffers:
    """A rank's buffers."""

    def __init__(self, folder: Path | None, layout: Layout, count: int) -> None:
        """`folder` None makes them anonymous."""
        self.folder = folder
        self.layout = layout
        self._lock: int | None = None
        if folder is not None:
            self._claim(folder)
        parent = folder or Path()
        self.all = [
            Buffer(parent / buffer_name(i), layout.size_bytes, is_anonymous=folder is None)
            for i in range(count)
        ]
        for buffer in self.all:
            buffer.read_header()

    def _claim(self, folder: Path) -> None:
        """Lock the folder; what another layout has left there is removed."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"the snapshot buffers in {folder} are in use: another job of this run is alive"
            ) from error
        mark = folder / LAYOUT_NAME
        fingerprint = self.layout.fingerprint()
        with suppress(OSError, ValueError):
            if json.loads(mark.read_text()) == fingerprint:
                return
        for path in folder.iterdir():
            if path.name != LOCK_NAME:
                path.unlink()
        mark.write_text(json.dumps(fingerprint))

    def map_pages(self) -> None:
        """Map all buffers' pages in a thread, once the writer process has made them: in the first
        snapshot each page would cost the copy a fault of its own."""

        def map_all() -> None:
            for buffer in self.all:
                buffer.map_pages()

        threading.Thread(target=map_all, name="snapshot-pages", daemon=True).start()

    def rebind(self, layout: Layout) -> None:
        """Copy from other tensors from now on, which lie at the same places in a buffer."""
        if layout.fingerprint() != self.layout.fingerprint():
            raise CheckpointError("loading has changed the shape of the training state")
        self.layout = layout

    def snapshots(self) -> dict[int, Buffer]:
        """Step -> the buffer that holds its snapshot."""
        return {b.snapshot.step: b for b in self.all if b.snapshot is not None}

    @property
    def newest(self) -> Buffer | None:
        """The buffer with the latest snapshot."""
        held = self.snapshots()
        return held[max(held)] if held else None

    def remove(self) -> None:
        """Give the memory back, once no restart needs it."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                self.folder.parent.rmdir()


def copy_bytes(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy a host tensor, in this thread alone and without holding Python's lock.

    torch would spread it over its compute threads, which the training step is using.
    """
    if source.is_contiguous() and target.is_contiguous():
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        target.copy_(source)
