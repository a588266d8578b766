"""Whether a file holds a log at all: by a sample of its beginning, as text of whatever encoding or as none."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from tasks.diagnose.packed import DAMAGED, Prepended, Readable, decompressed, first_bytes

_HEAD_BYTES = 1 << 13
_MOST_LEADING_ZEROS = 64 << 20
_HOLE = re.compile(rb"\x00{256,}")
"""What a crash of the node, or a log that was cut while its writer went on, leaves in a text."""
_LEAST_ZEROS = 32
_MOST_ZEROS = 0.1
"""Share of a text's bytes: stray ones, as some programs print."""
_CONTROLS = bytes({*range(1, 0x20), 0x7F} - set(b"\t\n\v\f\r\b\x1b"))
"""That no program prints for people; progress bars go back and colour their text."""
_LEAST_CONTROLS = 8
_MOST_CONTROLS = 0.1
_MOST_CONTROLS_IF_BROKEN = 0.025
_MOST_BROKEN = 0.1
"""Share of characters that are no UTF-8. Other encodings of text have many too, but no control bytes beside them."""
_MAGIC = (
    b"\x7fELF",
    b"\x89PNG\r\n",
    b"\xff\xd8\xff",
    b"GIF8",
    b"%PDF-",
    b"PK\x03\x04",
    b"7z\xbc\xaf",
    b"\x04\x22\x4d\x18",
    b"\x93NUMPY",
    b"PAR1",
    b"SQLite format 3\x00",
)
"""Core dumps and programs, pictures, archives that are not unpacked, arrays and tables."""
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def is_binary(path: Path) -> bool:
    """Whether the file holds no text. Of a file that cannot be read: no; whoever reads it says why."""
    try:
        with open(path, "rb", buffering=0) as file:
            content = as_utf8(decompressed(file))
            return _is_binary(first_bytes(content, _HEAD_BYTES), content)
    except (EOFError, OSError, *DAMAGED):
        return False


def _is_binary(head: bytes, rest: Readable) -> bool:
    if len(head) >= _LEAST_ZEROS and not head.strip(b"\0"):
        return _only_zeros(rest)
    if head.startswith(_MAGIC):
        return True
    text = _HOLE.sub(b"", head)
    zeros = text.count(0)
    if zeros >= _LEAST_ZEROS and zeros > _MOST_ZEROS * len(text):
        return True
    controls = len(text) - len(text.translate(None, _CONTROLS))
    if controls < _LEAST_CONTROLS or controls <= _MOST_CONTROLS_IF_BROKEN * len(text):
        return False
    return controls > _MOST_CONTROLS * len(text) or _broken(text) > _MOST_BROKEN


def _only_zeros(rest: Readable) -> bool:
    """Whether nothing else comes: a log that was cut while its writer went on begins with a hole."""
    read = 0
    while read < _MOST_LEADING_ZEROS and (more := rest.read(1 << 18)):
        if more.strip(b"\0"):
            return False
        read += len(more)
    return True


def _broken(text: bytes) -> float:
    characters = text.decode("utf-8", errors="replace")
    return characters.count("\ufffd") / max(1, len(characters))


def as_utf8(stream: Readable) -> Readable:
    """The stream; one of UTF-16 that says so by its first bytes, in UTF-8."""
    return _Told(stream)


class _Told:
    """Looks at the first bytes when they are asked for: who reads is told there of a packed file that is damaged."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._text: Readable | None = None

    def read(self, size: int = -1, /) -> bytes:
        if self._text is None:
            head = first_bytes(self._stream, len(_BOMS[0]))
            kind = _Converted if head in _BOMS else Prepended
            self._text = kind(head, self._stream)
        return self._text.read(size)


class _Converted:
    """UTF-16 as UTF-8. What a read gives may be longer than was asked for, by half."""

    def __init__(self, head: bytes, rest: Readable) -> None:
        self._rest = rest
        self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        self._decoder.decode(head)

    def read(self, size: int = -1, /) -> bytes:
        while data := self._rest.read(size):
            if text := self._decoder.decode(data):
                return text.encode("utf-8", errors="replace")
        return self._decoder.decode(b"", final=True).encode("utf-8", errors="replace")
