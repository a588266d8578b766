"""How far each rank came, by its own reports: a few that are behind the others are those that these wait for."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise

from tasks.diagnose.logs import LogLine, writer_of
from tasks.diagnose.patterns import compile_pattern

_COLUMN = compile_pattern(
    r"^\s*(?:\S{1,30} ){0,2}(?:[\[(](?P<number>\d{1,5})[\])]|(?:p|proc|w)(?P<bare>\d{1,5})):? {1,3}"
    r"(?:\S{1,30} ){0,3}?(?:global_)?(?:step|iter(?:ation)?|upd(?:ate)?)\b"
)
"""A number before a step's report, which is a rank's if many come side by side."""
_MAX_COLUMNS = 32_768
_MAX_NUMBERS = 4096
_MIN_REPORTERS = 3
_REGULAR_REPORTS = 3
_ROUNDS = 3
_REPORTS_BEHIND = 5
"""A rank that is further behind and has seldom reported speaks only now and then."""


@dataclass
class _Reports:
    last: dict[int, int] = field(default_factory=dict)
    """The last step, by rank."""
    count: Counter[int] = field(default_factory=Counter)
    """How often a rank has reported."""
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=_MAX_NUMBERS))
    """The steps last reported."""
    highest: int = -1
    since_highest: int = 0
    """Reports since a step was the highest yet."""

    def note(self, rank: int, step: int) -> None:
        self.since_highest = 0 if step > self.highest else self.since_highest + 1
        self.highest = max(step, self.highest)
        self.last[rank] = step
        self.count[rank] += 1
        self.numbers.append(step)

    def merge(self, other: _Reports) -> None:
        self.last.update(other.last)
        self.since_highest = min(self.since_highest, other.since_highest)
        self.highest = max(self.highest, other.highest)
        self.count.update(other.count)
        self.numbers.extend(other.numbers)

    def laggards(self) -> set[int]:
        if len(self.last) < _MIN_REPORTERS:
            return set()
        last = max(self.last.values())
        near = last - _REPORTS_BEHIND * self._steps_of_a_report()
        told = {
            rank: step
            for rank, step in self.last.items()
            if step >= near or self.count[rank] >= _REGULAR_REPORTS
        }
        behind = {rank for rank, step in told.items() if step < last}
        return behind if 2 * len(behind) < len(told) else set()

    def _steps_of_a_report(self) -> int:
        """Steps between two reports, by the last of them."""
        numbers = sorted(set(self.numbers))
        return min((after - before for before, after in pairwise(numbers)), default=0)


@dataclass
class StepsByRank:
    """The steps that ranks have reported: those of lines that name a rank, or else by a column of numbers."""

    _named: _Reports = field(default_factory=_Reports)
    _columns: _Reports = field(default_factory=_Reports)
    _newest: tuple[int, int] | None = None
    """The newest report of a column: number and step."""
    _side_by_side: int = 0
    """Reports of the same step as the one before, by another number: an epoch's number stays for long."""

    @property
    def last(self) -> dict[int, int]:
        """The last step, by rank."""
        return self._named.last

    def feed(self, line: LogLine, step: int) -> None:
        """Take note of a report."""
        if (rank := writer_of(line)) is not None:
            self._named.note(rank, step)
        elif match := _COLUMN.search(line.body):
            self._note_column(int(match["number"] or match["bare"]), step)

    def _note_column(self, number: int, step: int) -> None:
        if len(self._columns.last) >= _MAX_COLUMNS and number not in self._columns.last:
            return
        newest, self._newest = self._newest, (number, step)
        if newest is not None and newest[0] != number and newest[1] == step:
            self._side_by_side += 1
        self._columns.note(number, step)

    def merge(self, other: StepsByRank) -> None:
        """Add what was read in other files."""
        self._named.merge(other._named)
        self._columns.merge(other._columns)
        self._side_by_side += other._side_by_side

    def laggards(self) -> set[int]:
        """The ranks whose last reported step is before that of the others, when they are few."""
        return self._told().laggards()

    def stands(self) -> bool:
        """Whether ranks go on to report steps, but for several rounds the same, and a few are behind."""
        told = self._told()
        return told.since_highest >= _ROUNDS * len(told.last) and bool(told.laggards())

    def _told(self) -> _Reports:
        if not self._named.last and 2 * self._side_by_side > self._columns.count.total():
            return self._columns
        return self._named
