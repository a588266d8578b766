"""Bytes of a log -> blocks of whole lines, in bounded memory, whatever the file holds.

A block is what one pass in C can work on. What a progress bar rewrites with carriage returns is a
piece for each rewrite, all with the number of their line, so that an error printed behind the bar is
seen.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.errors import InputError
from tasks.diagnose.packed import DAMAGED, Readable

BLOCK_BYTES = 1 << 18
MAX_PIECE_BYTES = 1 << 14
"""A longer piece loses its middle: what an error says stands at its start or its end."""
_TAIL_BYTES = MAX_PIECE_BYTES // 4
_CUT = b" ... "

# Python's own engine: every repeat is followed by what it cannot hold, so that it is linear here,
# and RE2's module is slow at replacing in bytes.
_ANSI = re.compile(rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*\x07?|[@-Z\\^_])")


REWRITE_TO_NEWLINE = bytes.maketrans(b"\r", b"\n")


@dataclass(frozen=True)
class Block:
    """Some pieces of a log, in order."""

    data: bytes
    """The pieces, with a newline or a carriage return between two."""
    ends: NDArray[np.int64]
    """Where each piece but the last ends."""
    numbers: Sequence[int]
    """1-based line number of each piece; empty pieces have one too."""

    def pieces(self) -> list[bytes]:
        """The bytes of each piece."""
        data = self.data.translate(REWRITE_TO_NEWLINE) if b"\r" in self.data else self.data
        return data.split(b"\n")


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
        if last == b"\n":
            data = data.removesuffix(b"\r")
        rewritten = b"\r" in data
        if rewritten and _has_windows_newlines(data):
            data = data.replace(b"\r\n", b"\n")
            rewritten = b"\r" in data
        characters = np.frombuffer(data, dtype=np.uint8)
        newline = characters == ord("\n")
        numbers: Sequence[int]
        if rewritten:
            ends = np.flatnonzero(newline | (characters == ord("\r")))
            numbers = _numbers_of_rewrites(newline[ends], self.number)
        else:
            ends = np.flatnonzero(newline)
            numbers = range(self.number, self.number + len(ends) + 1)
        self.number = numbers[-1] + (last == b"\n")
        return Block(data, ends, numbers)


def clean(piece: bytes) -> bytes:
    """The piece without colours and other commands to a terminal."""
    return _ANSI.sub(b"", piece) if b"\x1b" in piece else piece


def _has_windows_newlines(data: bytes) -> bool:
    """By the first line. Elsewhere a bar may end so: an empty piece is cheaper than to look for all."""
    first = data.find(b"\n")
    return data[first - 1 : first] == b"\r"


def _numbers_of_rewrites(ends_line: NDArray[np.bool_], first: int) -> Sequence[int]:
    """Line number of each piece between newlines and carriage returns; only newlines count."""
    numbers = np.full(len(ends_line) + 1, first, dtype=np.int64)
    numbers[1:] += np.cumsum(ends_line)
    return array("q", numbers.tobytes())


def read_blocks(
    stream: Readable,
    block_bytes: int = BLOCK_BYTES,
    on_cut_off: Callable[[], None] = lambda: None,
) -> Iterator[Block]:
    """All blocks of a stream, each of about that size.

    A packed one may end in the middle, when its writer was killed: what there is counts, and
    `on_cut_off` is told.
    """
    splitter = LineSplitter()
    for data in _read(stream, block_bytes, on_cut_off):
        block = splitter.push(data)
        if block is not None:
            yield block
    block = splitter.finish()
    if block is not None:
        yield block


def _read(stream: Readable, block_bytes: int, on_cut_off: Callable[[], None]) -> Iterator[bytes]:
    while True:
        try:
            data = stream.read(block_bytes)
        except EOFError:
            on_cut_off()
            return
        except DAMAGED as error:
            raise InputError(f"the compressed log is damaged: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            # bzip2's way to say so.
            raise InputError(f"the compressed log is damaged: {error}") from error
        if not data:
            return
        yield data


def without_middle(piece: bytes) -> bytes:
    """The piece, cut in its middle to MAX_PIECE_BYTES when it is longer."""
    if len(piece) <= MAX_PIECE_BYTES:
        return piece
    return piece[: MAX_PIECE_BYTES - _TAIL_BYTES - len(_CUT)] + _CUT + piece[-_TAIL_BYTES:]
