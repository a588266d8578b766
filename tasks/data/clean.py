"""What a document becomes before it is tokenized: normalised, known by its hash, put into a split.

All of it depends on the document's text alone (and the seed), so a document keeps its hash and its
split when others are added.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator

_DIGEST_BYTES = 16
_INITIAL_SLOTS = 1 << 10
_LINE_BREAKS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Control characters except tab and newline, and the byte order mark.
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def normalise(text: str) -> str:
    """Unicode NFC, newlines as \\n, no control characters, no trailing blanks, no blank edges.

    Half a surrogate pair, which JSON can spell but UTF-8 cannot, becomes U+FFFD.
    """
    text = _CONTROL_CHARACTERS.sub("", _LINE_BREAKS.sub("\n", text))
    if not text.isascii():
        text = unicodedata.normalize("NFC", _SURROGATES.sub("\ufffd", text))
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def cut(text: str, limit: int) -> Iterator[str]:
    """Pieces of at most `limit` characters, cut after a paragraph, line or word where there is one."""
    start = 0
    while len(text) - start > limit:
        end = _cut_position(text, start, start + limit)
        if piece := text[start:end].strip(" \n"):
            yield piece
        start = end
    if rest := text[start:].strip(" \n"):
        yield rest


def _cut_position(text: str, start: int, end: int) -> int:
    for mark in ("\n\n", "\n", " "):
        position = text.rfind(mark, start, end)
        if position > start:
            return position
    return end


def digest_of(text: str) -> bytes:
    """Identity of a normalised text."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def split_position(digest: bytes, seed: int) -> float:
    """A number in [0, 1), uniform over documents: below the validation fraction is validation."""
    keyed = hashlib.blake2b(digest, digest_size=7, key=str(seed).encode()).digest()
    return int.from_bytes(keyed, "big") / 2**56


class DigestSet:
    """A set of digests in one flat table: 24 to 48 bytes each, a quarter of what `set[bytes]` takes."""

    def __init__(self) -> None:
        self._slots = _INITIAL_SLOTS
        self._table = bytearray(self._slots * _DIGEST_BYTES)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, digest: bytes) -> bool:
        """Add a digest; False when it was there."""
        if 3 * self._count >= 2 * self._slots:
            self._grow()
        start = self._find(digest)
        end = start + _DIGEST_BYTES
        if self._table[start:end] == digest:
            return False
        self._table[start:end] = digest
        self._count += 1
        return True

    def _find(self, digest: bytes) -> int:
        """Start of the digest's slot: where it is, or the free one (all zeros) where it belongs."""
        slot = int.from_bytes(digest[:8], "big") % self._slots
        while True:
            start = slot * _DIGEST_BYTES
            entry = self._table[start : start + _DIGEST_BYTES]
            if entry == digest or not any(entry):
                return start
            slot = (slot + 1) % self._slots

    def _grow(self) -> None:
        old = self._table
        self._slots *= 2
        self._table = bytearray(self._slots * _DIGEST_BYTES)
        for start in range(0, len(old), _DIGEST_BYTES):
            digest = bytes(old[start : start + _DIGEST_BYTES])
            if any(digest):
                position = self._find(digest)
                self._table[position : position + _DIGEST_BYTES] = digest
