"""Where logs are read from: files, compressed or not, standard input, files that still grow."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from configs.errors import InputError
from tasks.diagnose.binary import as_utf8
from tasks.diagnose.blocks import BLOCK_BYTES, Block, LineSplitter, read_blocks
from tasks.diagnose.packed import decompressed

STDIN = "-"

_RANK_IN_NAME = re.compile(
    r"(?<![a-z])(?<!local[_-])(?:global_?)?rank[_\-.]?(?P<rank>\d{1,6})(?!\d)", re.IGNORECASE
)
_RANK_FOLDER = re.compile(r"\d{1,6}")
_STREAM_NAMES = ("stdout.log", "stderr.log")


@dataclass(frozen=True)
class Source:
    """One file of a job's logs, or standard input."""

    path: Path | None
    """None for standard input."""
    name: str
    """How evidence calls it."""
    rank: int | None = None
    """Of the rank that alone writes it; None for a stream of many."""


def source_of(path: str | Path, name: str | None = None) -> Source:
    """The source at a path; `-` is standard input."""
    if str(path) == STDIN:
        return Source(None, name or STDIN)
    return Source(Path(path), printable(name or str(path)), rank_of_file(Path(path)))


def rank_of_file(path: Path) -> int | None:
    """The rank by the file's name (rank_3.log), or by torchrun's folders (attempt_0/3/stderr.log)."""
    if (match := _RANK_IN_NAME.search(path.name)) is not None:
        return int(match["rank"])
    if path.name in _STREAM_NAMES and _RANK_FOLDER.fullmatch(path.parent.name):
        return int(path.parent.name)
    return None


def printable(name: str) -> str:
    """A file's name with escapes for bytes that are no UTF-8: such a name can be opened, not printed."""
    return os.fsencode(name).decode(errors="backslashreplace")


def why_unreadable(name: str, error: InputError | OSError) -> str:
    """A sentence for who has named the file, or what holds it."""
    if isinstance(error, InputError):
        return str(error)
    return f"{error.filename or name} cannot be read: {error.strerror or type(error).__name__}"


def blocks_of(
    source: Source,
    block_bytes: int = BLOCK_BYTES,
    on_cut_off: Callable[[], None] = lambda: None,
) -> Iterator[Block]:
    """Read the source to its present end, decompressed if need be; `on_cut_off` as in `read_blocks`."""
    if source.path is None:
        piped = as_utf8(decompressed(_Unbuffered(sys.stdin.buffer)))
        yield from read_blocks(piped, block_bytes, on_cut_off)
        return
    with open(source.path, "rb", buffering=0) as file:
        try:
            yield from read_blocks(as_utf8(decompressed(file)), block_bytes, on_cut_off)
        except InputError as error:
            raise InputError(f"{source.path}: {error}") from error


class _Unbuffered:
    """A pipe, read as it comes: a block need not be full."""

    def __init__(self, stream: BinaryIO) -> None:
        self._read = getattr(stream, "read1", stream.read)

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._read(size)
        return data


@dataclass
class Tail:
    """A plain file that another process still writes: gives what has come since the last look.

    A line without its newline is held back until it ends, or until `finish`. A file that is
    replaced or cut short (rotated, restarted) is read from its start again.
    """

    source: Source
    _splitter: LineSplitter = field(default_factory=LineSplitter)
    _offset: int = 0
    _inode: int | None = None

    def read(self, max_bytes: int = 64 << 20) -> Iterator[Block]:
        """Whole lines that have come, at most `max_bytes` at a time. A file not there yet is empty."""
        assert self.source.path is not None, "standard input is no file that grows"
        if not self.source.path.exists():
            return
        with open(self.source.path, "rb", buffering=0) as file:
            self._note_replacement(os.fstat(file.fileno()))
            file.seek(self._offset)
            end = self._offset + max_bytes
            while self._offset < end and (data := file.read(BLOCK_BYTES)):
                self._offset += len(data)
                block = self._splitter.push(data)
                if block is not None:
                    yield block

    def finish(self) -> Block | None:
        """The last line, when no more will come."""
        return self._splitter.finish()

    def _note_replacement(self, status: os.stat_result) -> None:
        if self._inode not in (None, status.st_ino) or status.st_size < self._offset:
            self._splitter, self._offset = LineSplitter(), 0
        self._inode = status.st_ino
