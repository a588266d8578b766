"""Collectives that timed out: who waited in which, so who did not come.

The rank that the others wait for reports nothing, or is behind: it waits in an earlier collective.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tasks.diagnose.logs import MAX_RANKS, LogLine
from tasks.diagnose.patterns import compile_pattern

_RANK = compile_pattern(r"\bRank (\d+)\]")
_WORK = compile_pattern(r"WorkNCCL\((?:SeqNum=(\d+), )?OpType=(\w+)")
_ENQUEUED = compile_pattern(r"[Ll]ast enqueued (?:NCCL )?work: (\d+)")
_MISSING = compile_pattern(
    r"(?:Ranks? (?P<barrier>\d+(?:, \d+)*) failed to pass monitoredBarrier|"
    r"^\s*(?:- )?\[(?P<desync>\d+(?:, ?\d+)*)\] (?:finished collective .{0,80}but didn't join|joined but didn't finish|never joined)|"
    r"missing(?: ranks:|: ranks?) [\[{]?(?P<recorder>\d+(?:, ?\d+)*)|"
    r"(?i:ranks?) (?i:which|that) (?i:did not|have not|has not|never) (?i:join|enter|reach|arriv)\w*(?: \w+){0,3}: ?[\[{]?(?P<analysis>\d+(?:, ?\d+)*)|"
    r"(?i:rank) (?P<one>\d+)(?: \w+)? (?i:has not joined|did not join|does not join|doesn't join|never joined|(?:has|wrote|left|sent) no (?:dump|record|trace)|did not dump|missing from the dump|did not enter|never entered|never reached|stack unchanged|is the only (?:one|rank) (?:behind|missing|absent|not)))|"
    r"(?i:\babsent|\babsentees?)(?i:: ?|: ranks? )[\[{]?(?P<absent>\d+(?:, ?\d+)*)[\]}]|"
    r"(?i:no heart-?beats? (?:from|of) rank) (?P<unheard>\d+)\b|"
    r"(?i:heart-?beats? (?:from|of) rank) (?P<stale>\d+) (?i:(?:is |was |has )?(?:stale|lost|missing|overdue|stopped))|"
    r"(?i:\brank) (?P<stopped>\d+) (?i:(?:has )?(?:stopped (?:sending|its|to send) heart-?beats?|(?:does|did) not respond|is unresponsive))"
)
"""As a barrier says it, the analysis of NCCL's flight records, and watchdogs of other makes."""
_MOST_WAIT = 0.5
"""Share of all ranks that must have reported, for the others' silence to mean something."""


@dataclass
class Collectives:
    """What ranks say about collectives that timed out."""

    waiting_in: dict[int, int] = field(default_factory=dict)
    """Sequence number of the first collective that timed out on a rank; -1 where it is not said."""
    enqueued: dict[int, int] = field(default_factory=dict)
    named: Counter[int] = field(default_factory=Counter)
    """How often a rank is named as missing."""

    def feed(self, line: LogLine) -> None:
        """Take note of a line about a time-out."""
        text = line.body
        if match := _MISSING.search(text):
            ranks = next(filter(None, match.groupdict().values())) or ""
            self.named.update(r for r in map(int, ranks.split(",")) if r < MAX_RANKS)
        if (rank := _rank_of(line)) is None:
            return
        if match := _ENQUEUED.search(text):
            self.enqueued.setdefault(rank, int(match[1]))
        elif match := _WORK.search(text):
            self.waiting_in.setdefault(rank, int(match[1]) if match[1] else -1)

    def merge(self, other: Collectives) -> None:
        """Add what other files say; the first word on a rank counts."""
        self.waiting_in = {**other.waiting_in, **self.waiting_in}
        self.enqueued = {**other.enqueued, **self.enqueued}
        self.named += other.named

    def absent(self, ranks: set[int], reported: set[int]) -> set[int]:
        """The ranks that the others wait for, of all `ranks`; empty when it cannot be told.

        `reported`: ranks with a time-out of their own, by whatever backend.
        """
        if self.named:
            return {rank for rank, _ in self.named.most_common(1)}
        waiting = set(self.waiting_in) | reported
        silent = ranks - waiting
        if len(silent) == 1 or (silent and len(waiting) > _MOST_WAIT * len(ranks | waiting)):
            return silent
        return _behind(self.enqueued) or _behind(
            {rank: number for rank, number in self.waiting_in.items() if number >= 0}
        )


def names_missing(text: str) -> bool:
    """Whether a line names ranks that did not come to a collective."""
    return ("ank" in text or "collective" in text) and _MISSING.search(text) is not None


def _behind(numbers: dict[int, int]) -> set[int]:
    """The ranks with the lowest number, when they are few."""
    if not numbers or len(set(numbers.values())) < 2:
        return set()
    lowest = min(numbers.values())
    behind = {rank for rank, number in numbers.items() if number == lowest}
    return behind if 2 * len(behind) <= len(numbers) else set()


def _rank_of(line: LogLine) -> int | None:
    match = _RANK.search(line.body)
    rank = int(match[1]) if match else line.rank
    return rank if rank is not None and rank < MAX_RANKS else None
