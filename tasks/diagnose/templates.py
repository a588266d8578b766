"""Lines that differ only in values are one template.

Two keys lead from a line to its template. The *shape* is the line without digits and without what
stands between them; a whole block gets its shapes in one pass in C. Lines whose values hold letters
(addresses, hashes, paths) have many shapes, and meet in the *mask*, in which values are <*>.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tasks.diagnose.blocks import REWRITE_TO_NEWLINE
from tasks.diagnose.logs import MAX_RANKS, LogLine

_BARS = b"#\xe2\x94\x95\x96\x81\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\xb8\xba"
"""What progress bars are drawn with: block and line characters, as bytes of UTF-8."""
VARIABLE = b"0123456789.+- \t\x00" + _BARS
_VALUE = re.compile(rb"\d[\da-fA-FxX]*(?:[.,:_+-]+\d[\da-fA-FxX]*)*")
# Python's own engine: no repeat can take what its neighbour takes, and pieces are cut before.
_ANY_VALUE = re.compile(
    rb"(?<![\w.])~?(?:/[\w.+@=~-]+){2,}/?|\b[0-9a-fA-F]{6,}\b(?:-[0-9a-fA-F]{4,}\b)*|"
    rb"[a-fA-F]*\d[\da-fA-FxX]*(?:[.,:_+-]+\d[\da-fA-FxX]*)*"
)
MASK = b"<*>"
MAX_MASKED_BYTES = 2048
_GROUP_WORDS = 3
_ENTRY_BYTES = 150
"""Of a key in a dictionary, beside its text."""
_WORDS = re.compile(rb"[A-Za-z_][A-Za-z_.]*")

TemplateKind = Literal["blank", "dropped", "folded", "cause", "traceback"]


class Cache(dict[bytes, int]):
    """Templates by shape or mask. Keys are without bound (a hash in a line makes one each), so a cache
    that is full starts again."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._bytes = 0

    def remember(self, key: bytes, index: int) -> None:
        """Keep the index of a key; not of one so long that few would fit."""
        size = len(key) + _ENTRY_BYTES
        if size > self._max_bytes // 100:
            return
        if self._bytes + size > self._max_bytes:
            self.clear()
            self._bytes = 0
        self[key] = index
        self._bytes += size


def shapes(data: bytes) -> list[bytes]:
    """The shape of each piece of a block."""
    return data.translate(REWRITE_TO_NEWLINE, VARIABLE).split(b"\n")


def quick_mask(piece: bytes) -> bytes:
    """The piece with values that begin with a digit masked."""
    return _VALUE.sub(MASK, piece[:MAX_MASKED_BYTES])


def mask(piece: bytes) -> bytes:
    """The piece with all values masked: numbers, addresses, hashes, paths, stamps, host names."""
    return _ANY_VALUE.sub(MASK, piece[:MAX_MASKED_BYTES])


@dataclass
class Template:
    """Lines that are told apart by nothing but values."""

    kind: TemplateKind
    text: str
    """Masked; of dropped lines the rule's id."""
    first: LogLine | None = None
    count: int = 0
    last_name: str = ""
    """File of the last occurrence."""
    last_number: int = 0
    last_position: tuple[int, int] = (0, 0)
    """Index of the source, and of the piece in it."""
    last_piece: bytes = b""
    ranks: int = 0
    """Bit r is set when rank r wrote it."""
    names_rank: bool = False
    """Its lines carry a launcher's prefix."""
    rank_samples: int = 64
    """How many lines of the next block are read for their rank."""
    holds_loss: bool = False
    """Its lines report a loss: a jump in it is kept."""
    rule_kind: str = ""
    """Of dropped lines."""

    def add_rank(self, rank: int | None) -> None:
        """Note that a rank wrote it."""
        self.ranks |= rank_bit(rank)


@dataclass
class TemplateTable:
    """All templates, at most so many: what comes later is folded by its first words, then as one.

    Causes have room of their own, so that no flood of other lines takes it.
    """

    max_templates: int
    max_bytes: int = 12 << 20
    """Of the templates' texts: lines can be long."""
    templates: list[Template] = field(default_factory=list)
    _bytes: int = 0
    _by_mask: dict[bytes, int] = field(default_factory=dict)
    _used: dict[tuple[bool, str], int] = field(default_factory=dict)
    """Room that is taken, by causes and by others."""

    def find(self, masked: bytes) -> int | None:
        """Index of the template of a masked line."""
        return self._by_mask.get(masked)

    def add(self, masked: bytes, template: Template, cause_words: str = "") -> int:
        """Index of the new template, or of the group that takes it in when there is no room.

        Causes are grouped by their first words, then by their cause words, others by the first words
        alone; what still finds no room is one group.
        """
        cause = template.kind in ("cause", "traceback")
        size = 2 * len(masked) + (2 * len(template.first.text) if template.first else 0)
        fits = self._bytes + size <= self.max_bytes
        if fits and self._take_room(cause, "templates", self.max_templates):
            self._bytes += size
            self._by_mask[masked] = self.append(template)
            return self._by_mask[masked]
        first_words = b" ".join(_WORDS.findall(masked)[:_GROUP_WORDS]).decode()
        groups = {"first words": first_words}
        if cause:
            groups["cause words"] = f"... {cause_words}"
        for what, text in groups.items():
            key = f"\x00{cause} {text}".encode()
            if key in self._by_mask:
                return self._by_mask[key]
            if self._take_room(cause, what, self.max_templates // 4):
                return self._add_group(key, template, text)
        key = f"\x00{cause}".encode()
        known = self._by_mask.get(key)
        return self._add_group(key, template, "other lines") if known is None else known

    def _add_group(self, key: bytes, template: Template, text: str) -> int:
        template.text = f"{text} <...>"
        self._by_mask[key] = self.append(template)
        return self._by_mask[key]

    def append(self, template: Template) -> int:
        """Index of a new template; without a mask, of one that no line is looked up for: a rule's."""
        self.templates.append(template)
        return len(self.templates) - 1

    def _take_room(self, cause: bool, what: str, limit: int) -> bool:
        used = self._used.get((cause, what), 0)
        if used < limit:
            self._used[(cause, what)] = used + 1
        return used < limit


def rank_bit(rank: int | None) -> int:
    """The bit that stands for a rank; none for what can be no rank, which would take as many bits."""
    return 0 if rank is None or rank >= MAX_RANKS else 1 << rank


def rank_ranges(ranks: int) -> str:
    """Set bits as text, such as 0-3,7."""
    found: list[list[int]] = []
    rank = 0
    while ranks:
        skipped = (ranks & -ranks).bit_length() - 1
        rank, ranks = rank + skipped, ranks >> skipped
        run = (~ranks & (ranks + 1)).bit_length() - 1
        found.append([rank, rank + run - 1])
        rank, ranks = rank + run, ranks >> run
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in found)
