"""Who is missing in a roll call of hosts: lines of one wording that list those which answered."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tasks.diagnose.host_names import family_of, host_tokens
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_CALL = compile_pattern(
    r"(?i)\b(?:roll[ _-]?call|alive|present|answered|heard (?:from|of)|heartbeats?|responding|ready|online)\b"
)
_KEPT = compile_pattern(
    r"(?i)\b(?:retain(?:ed|ing)?|keep(?:ing)?|kept|remaining|surviving) (?:the )?(?:healthy )?(?:nodes?|hosts?|instances?)\b"
)
"""Of a job that goes on without some of its hosts."""
_KEPT_WORDS = ("etain", "eep", "ept ", "emaining", "urviving")
_NUMBERS = re.compile(r"\d+")
_SHAPE_CHARS = 60
_MIN_HOSTS = 3
_MAX_SHAPES = 16
_MAX_HOSTS = 4096
"""Of a wording: each call is compared with all."""


@dataclass
class Calls:
    """Roll calls of one wording."""

    hosts: set[str] = field(default_factory=set)
    """All that have ever answered."""
    last: set[str] = field(default_factory=set)
    latest: LogLine | None = None
    first_short: LogLine | None = None
    """The first of those, up to the last, in which the same hosts were missing."""


@dataclass
class HostRollCalls:
    """Feed it lines; it knows who did not answer the last call."""

    calls: dict[str, Calls] = field(default_factory=dict)
    """By wording."""

    def feed(self, line: LogLine) -> None:
        """Take note of one line."""
        if (found := _call_in(line)) is None:
            return
        shape, hosts = found
        if shape not in self.calls and len(self.calls) >= _MAX_SHAPES:
            return
        self._note(self.calls.setdefault(shape, Calls()), hosts, line)

    def _note(self, calls: Calls, hosts: set[str], line: LogLine | None) -> None:
        missing = calls.hosts - calls.last
        if len(calls.hosts) < _MAX_HOSTS:
            calls.hosts |= hosts
        calls.last, calls.latest = hosts, line or calls.latest
        gone = calls.hosts - hosts
        if not gone:
            calls.first_short = None
        elif gone != missing or calls.first_short is None:
            calls.first_short = line

    def merge(self, other: HostRollCalls) -> None:
        """Add what later files tell."""
        for shape, theirs in other.calls.items():
            if shape not in self.calls and len(self.calls) >= _MAX_SHAPES:
                continue
            mine = self.calls.setdefault(shape, Calls())
            mine.hosts |= theirs.hosts
            self._note(mine, theirs.last, theirs.first_short or theirs.latest)

    def missing(self, members: AbstractSet[str]) -> tuple[str, LogLine] | None:
        """The only host that is missing at last, and the line where it first is.

        It has answered before, or is one of the job's `members`, of which all others have answered.
        """
        for calls in self.calls.values():
            whole = calls.hosts | members if calls.last <= members else calls.hosts
            gone, line = whole - calls.last, calls.first_short or calls.latest
            if len(gone) == 1 and line is not None and len(calls.last) >= _least(line):
                return next(iter(gone)), line
        return None


def _least(line: LogLine) -> int:
    """How many hosts a line must list: one that says which are kept lists all."""
    return 1 if _tells_kept(line.text) else _MIN_HOSTS


def _tells_kept(text: str) -> bool:
    return any(word in text for word in _KEPT_WORDS) and _KEPT.search(text) is not None


def is_roll_call(line: LogLine) -> bool:
    """Whether the line may be one of a roll call."""
    return _call_in(line) is not None


def _call_in(line: LogLine) -> tuple[str, set[str]] | None:
    text = line.text
    if line.rank is not None or (_CALL.search(text) is None and not _tells_kept(text)):
        return None
    tokens = host_tokens(text)
    if len(tokens) < _least(line) or len({family_of(name) for name in tokens}) > 1:
        return None
    before = text[: text.index(tokens[0])]
    return _NUMBERS.sub("#", before)[:_SHAPE_CHARS], set(tokens)
