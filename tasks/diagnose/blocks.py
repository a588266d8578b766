"""Bytes of a log -> blocks of whole lines, in bounded memory, whatever the file holds.

A block is what one pass in C can work on: lines in one piece of memory, colours taken out. What a
progress bar rewrites with carriage returns becomes a piece for each rewrite, all with the number of
their line, so that an error printed behind the bar is seen.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import BinaryIO, Protocol, cast

import zstandard

from configs.errors import InputError

BLOCK_BYTES = 1 << 18
MAX_PIECE_BYTES = 1 << 14
"""A longer piece loses its middle: what an error says stands at its start or its end."""
_TAIL_BYTES = MAX_PIECE_BYTES // 4
_CUT = b" ... "

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Python's own engine: every repeat is followed by what it cannot hold, so that it is linear here,
# and RE2's module is slow at replacing in bytes.
_ANSI = re.compile(rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*\x07?|[@-Z\\^_])")


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; none at the end."""


@dataclass(frozen=True)
class Block:
    """Some pieces of a log, in order."""

    data: bytes
    """The pieces, with a newline between two; without colours."""
    numbers: Sequence[int]
    """1-based line number of each piece; empty pieces have one too."""

    def pieces(self) -> list[bytes]:
        """The text of each piece."""
        return self.data.split(b"\n")


@dataclass
class LineSplitter:
    """Cuts a stream into blocks; keeps an unfinished line for the next one."""

    number: int = 1
    """Of the line that comes next."""
    _rest: bytes = b""

    def push(self, data: bytes) -> Block | None:
        """The whole lines that are there now."""
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        self._rest = data[end:]
        if len(self._rest) > BLOCK_BYTES:
            self._rest = without_middle(self._rest)
        return self._block(data[: end - 1], last=data[end - 1 : end]) if end else None

    def finish(self) -> Block | None:
        """The last line, which no newline ends."""
        data, self._rest = self._rest, b""
        return self._block(data, last=b"") if data else None

    def _block(self, data: bytes, *, last: bytes) -> Block:
        """`last` is the terminator that came after the data."""
        if b"\x1b" in data:
            data = _ANSI.sub(b"", data)
        if last == b"\n":
            data = data.removesuffix(b"\r")
        first = self.number
        numbers: Sequence[int]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if b"\r" in data:
            rewrites = [line.count(b"\r") + 1 for line in data.split(b"\n")]
            lines = len(rewrites)
            counted = enumerate(rewrites, first)
            numbers = list(chain.from_iterable(repeat(n, count) for n, count in counted))
            data = data.replace(b"\r", b"\n")
        else:
            lines = data.count(b"\n") + 1
            numbers = range(first, first + lines)
        self.number += lines if last == b"\n" else lines - 1
        return Block(data, numbers)


def read_blocks(stream: Readable) -> Iterator[Block]:
    """All blocks of a stream, decompressed if need be."""
    splitter = LineSplitter()
    for data in _read(stream):
        block = splitter.push(data)
        if block is not None:
            yield block
    block = splitter.finish()
    if block is not None:
        yield block


def decompressed(file: Readable) -> Readable:
    """The file's content: gzip and Zstandard are known by their first bytes, pipes included."""
    head = b""
    while len(head) < len(_ZSTD_MAGIC) and (more := file.read(len(_ZSTD_MAGIC) - len(head))):
        head += more
    whole = _Prepended(head, file)
    if head.startswith(_GZIP_MAGIC):
        return cast(Readable, gzip.GzipFile(fileobj=cast(BinaryIO, whole), mode="rb"))
    if head == _ZSTD_MAGIC:
        reader = zstandard.ZstdDecompressor().stream_reader(
            cast(BinaryIO, whole), read_across_frames=True
        )
        return cast(Readable, reader)
    return whole


def _read(stream: Readable) -> Iterator[bytes]:
    while True:
        try:
            data = stream.read(BLOCK_BYTES)
        except EOFError:
            return  # a compressed log whose writer was killed: what there is counts
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise InputError(f"the compressed log is damaged: {error}") from error
        if not data:
            return
        yield data


class _Prepended:
    """A stream whose first bytes have been read already."""

    def __init__(self, head: bytes, rest: Readable) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int = -1, /) -> bytes:
        if self._head:
            taken = len(self._head) if size < 0 else size
            head, self._head = self._head[:taken], self._head[taken:]
            return head if size >= 0 else head + self._rest.read()
        return self._rest.read(size)


def without_middle(piece: bytes) -> bytes:
    """The piece, cut in its middle to MAX_PIECE_BYTES when it is longer."""
    if len(piece) <= MAX_PIECE_BYTES:
        return piece
    return piece[: MAX_PIECE_BYTES - _TAIL_BYTES - len(_CUT)] + _CUT + piece[-_TAIL_BYTES:]
