"""Lines that are kept as they are: causes, what stands around them, whole tracebacks.

Bounded: when the room is used up, the first lines stay, and of later ones the last.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tasks.diagnose.exceptions import CHAIN_JOINTS, TRACEBACK_HEADER
from tasks.diagnose.logs import LogLine
from tasks.diagnose.templates import quick_mask, rank_bit

_MAX_LINES_OF_TRACEBACK = 300
_MAX_LINES_AWAITED = 3000
_MAX_OPEN = 4096
"""Tracebacks that ranks write at the same time; so many characters of them."""
_MAX_OPEN_CHARS = 16 << 20
_STAMP = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]? ?")
_GROUP_MARGIN = re.compile(r"^\s*[|+][ -]?")
_WEIGHTS = ("cause", "traceback", "metric", "template", "end", "context")

Position = tuple[int, int]
"""Index of the source, and of the piece in it."""


@dataclass(frozen=True)
class Verbatim:
    """One kept line."""

    line: LogLine
    why: str
    """One of _WEIGHTS: the weightiest reason."""


@dataclass
class VerbatimStore:
    """Kept lines by position."""

    max_lines: int
    max_bytes: int
    left_out: int = 0
    """Lines that found no room."""
    _first: dict[Position, Verbatim] = field(default_factory=dict)
    _last: deque[tuple[Position, Verbatim]] = field(init=False)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._last = deque(maxlen=max(1, self.max_lines // 10))

    def keep(self, position: Position, line: LogLine, why: str) -> None:
        """Keep a line; one that is there already stays, with the weightier reason."""
        known = self._first.get(position)
        if known is not None:
            if _WEIGHTS.index(why) < _WEIGHTS.index(known.why):
                self._first[position] = Verbatim(line, why)
            return
        size = len(line.text)
        if len(self._first) < self.max_lines and self._bytes + size <= self.max_bytes:
            self._first[position] = Verbatim(line, why)
            self._bytes += size
            return
        self.left_out += len(self._last) == self._last.maxlen
        self._last.append((position, Verbatim(line, why)))

    def lines(
        self, more: Iterable[tuple[Position, Verbatim]] = ()
    ) -> list[tuple[Position, Verbatim]]:
        """All kept lines and those given, in order."""
        kept = {**dict(more), **dict(self._last), **self._first}
        return sorted(kept.items(), key=lambda item: item[0])


@dataclass
class _Open:
    """A traceback that has begun and not ended."""

    begun_at: int
    lines: list[tuple[int, LogLine]] = field(default_factory=list)
    masked: list[bytes] = field(default_factory=list)
    chars: int = 0


@dataclass
class TracebackGroup:
    """Tracebacks that differ only in values."""

    first: LogLine
    last: LogLine
    count: int = 1
    ranks: int = 0


@dataclass
class TracebackFolder:
    """Puts tracebacks together, of each rank's stream by itself; the same one again is counted."""

    store: VerbatimStore
    max_groups: int
    groups: dict[int, TracebackGroup] = field(default_factory=dict)
    _open: dict[int | None, _Open] = field(default_factory=dict)
    """By rank, the one that began first in front."""
    _open_chars: int = 0

    def __len__(self) -> int:
        """Tracebacks that wait for more lines."""
        return len(self._open)

    @property
    def inside(self) -> bool:
        """Whether a traceback waits for more lines."""
        return bool(self._open)

    def begins(self, text: str) -> bool:
        """Whether a traceback begins in the text."""
        return TRACEBACK_HEADER in text

    def feed(self, position: Position, piece: bytes, line: LogLine | None) -> None:
        """Take the next line of a source; None for a blank one."""
        if line is None:
            return
        opened = self._open.get(line.rank)
        body = _STAMP.sub("", line.body)
        if opened is None:
            if self.begins(body):
                self._open[line.rank] = opened = _Open(position[1])
                self._add(opened, position, piece, line)
            self._close_old_ones(position)
            return
        self._add(opened, position, piece, line)
        inner = _GROUP_MARGIN.sub("", body)
        goes_on = (
            inner[:1].isspace()
            or body[:1].isspace()
            or self.begins(body)
            or inner.startswith(CHAIN_JOINTS)
        )
        if not goes_on or len(opened.lines) >= _MAX_LINES_OF_TRACEBACK:
            self._close(position[0], line.rank)

    def finish(self, source: int) -> None:
        """The source has ended: what is open is whole."""
        for rank in list(self._open):
            self._close(source, rank)

    def _add(self, opened: _Open, position: Position, piece: bytes, line: LogLine) -> None:
        opened.lines.append((position[1], line))
        opened.masked.append(quick_mask(piece))
        opened.chars += len(line.text)
        self._open_chars += len(line.text)

    def _close_old_ones(self, position: Position) -> None:
        """Those that nothing will come of, and the oldest of too many."""
        while self._open:
            rank, oldest = next(iter(self._open.items()))
            too_many = len(self._open) > _MAX_OPEN or self._open_chars > _MAX_OPEN_CHARS
            if not too_many and position[1] - oldest.begun_at <= _MAX_LINES_AWAITED:
                return
            self._close(position[0], rank)

    def _close(self, source: int, rank: int | None) -> None:
        opened = self._open.pop(rank)
        self._open_chars -= opened.chars
        key = hash(tuple(opened.masked))
        group = self.groups.get(key)
        last = opened.lines[-1][1]
        if group is None and len(self.groups) < self.max_groups:
            group = self.groups[key] = TracebackGroup(last, last, 0)
        if group is None or group.count == 0:
            for number, line in opened.lines:
                self.store.keep((source, number), line, "traceback")
        if group is not None:
            group.count += 1
            group.last = last
            group.ranks |= rank_bit(last.rank)
