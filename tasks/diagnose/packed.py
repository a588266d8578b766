"""Packed logs: gzip, Zstandard, xz, bzip2, known by their first bytes and unpacked as they are read."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO, Protocol, cast

import zstandard

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_BZIP2_MAGIC = b"BZh"
_LONGEST_MAGIC = len(_XZ_MAGIC)
DAMAGED = (zlib.error, zstandard.ZstdError, lzma.LZMAError)
"""What the libraries raise when what is packed cannot be what was packed. A file that ends too early is an
EOFError, of all of them here."""
_INPUT_BYTES = 1024
"""Unpacked at a time: a few bytes can be 128 KiB."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; none at the end."""


def decompressed(file: Readable) -> Readable:
    """The file's content: what it is packed with is known by its first bytes, pipes included."""
    head = first_bytes(file, _LONGEST_MAGIC)
    whole = Prepended(head, file)
    if head.startswith(_GZIP_MAGIC):
        return _Frames(whole, _gzip_member)
    if head == _XZ_MAGIC:
        return _AsItComes(lzma.LZMAFile(cast(BinaryIO, whole)))
    if head.startswith(_BZIP2_MAGIC) and head[3:4].isdigit():
        return _AsItComes(bz2.BZ2File(cast(BinaryIO, whole)))
    if head.startswith(_ZSTD_MAGIC):
        return _Frames(whole, _zstandard_frame)
    return whole


def first_bytes(stream: Readable, size: int) -> bytes:
    """So many bytes, or all that there are: a pipe gives them in pieces."""
    head = b""
    while len(head) < size and (more := stream.read(size - len(head))):
        head += more
    return head


class _Unpacking(Protocol):
    """A frame (of gzip, a member) that is being unpacked, as zlib and zstandard have it."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Frames:
    """The frames of a file, each piece of text as it comes.

    The libraries' own readers lose what they had unpacked before a file was cut off, or do not tell of it.
    """

    def __init__(self, file: Readable, begin: Callable[[], _Unpacking]) -> None:
        self._file = file
        self._begin = begin
        self._frame: _Unpacking | None = None
        """The one that has begun and not ended."""
        self._packed = b""
        self._text = bytearray()

    def read(self, size: int = -1, /) -> bytes:
        while (size < 0 or len(self._text) < size) and self._unpack_more():
            pass
        if not self._text and self._frame is not None:
            raise EOFError("the file ends in the middle of a frame")
        end = len(self._text) if size < 0 else size
        found = bytes(self._text[:end])
        del self._text[:end]
        return found

    def _unpack_more(self) -> bool:
        packed = self._packed or self._file.read(_INPUT_BYTES)
        if not packed:
            return False
        self._packed = b""
        if self._frame is None and not (packed := packed.lstrip(b"\0")):
            return True  # Padding between frames, or after the last.
        frame = self._frame or self._begin()
        self._frame = frame
        self._text += frame.decompress(packed)
        if frame.eof:
            self._frame, self._packed = None, frame.unused_data
        return True


def _gzip_member() -> _Unpacking:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


def _zstandard_frame() -> _Unpacking:
    return zstandard.ZstdDecompressor().decompressobj()


class _AsItComes:
    """What one read of the packed file gives: were it cut off, a longer read would lose that."""

    def __init__(self, file: lzma.LZMAFile | bz2.BZ2File) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        return self._file.read1(size)


class Prepended:
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
