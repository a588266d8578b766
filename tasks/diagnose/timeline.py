"""Findings of all files on one clock: whose came first.

In one file, lines stand in the order in which they came. Between files their own stamps decide. The
clocks of nodes differ: where several files tell of the same steps, the median of
 the differences is taken as the difference of their clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median

from tasks.diagnose.findings import Finding
from tasks.diagnose.logs import LogLine
from tasks.diagnose.times import time_of

_MAX_SHARED_STEPS = 32
_MAX_REFERENCES = 8
_MAX_SKEW_S = 3600.0
"""A larger difference is another event, or another time zone's; neither can be told apart."""
_MIN_SHARED = 3


@dataclass
class Clock:
    """What one file says of times."""

    year: int | None = None
    """For stamps without one."""
    shared: dict[int, float] = field(default_factory=dict)
    """Time by step: other files may tell of the same steps."""


@dataclass
class Timeline:
    """One clock over all files."""

    clocks: dict[str, Clock] = field(default_factory=dict)
    _skews: dict[str, float] = field(default_factory=dict)

    def note_step(self, line: LogLine, step: int) -> None:
        """A step's report, as all ranks may make one."""
        clock = self.clocks.setdefault(line.file, Clock())
        if len(clock.shared) >= _MAX_SHARED_STEPS or step in clock.shared:
            return
        seen = self._time(line, clock)
        if seen is not None:
            clock.shared[step] = seen

    def time_of_last(self, lines: Sequence[LogLine]) -> float | None:
        """Time of the last of the lines that has one."""
        for line in reversed(lines):
            clock = self.clocks.setdefault(line.file, Clock())
            if (seen := self._time(line, clock)) is not None:
                return seen
        return None

    def merge(self, other: Timeline) -> None:
        """Add the clocks of other files."""
        self.clocks.update(other.clocks)
        self._skews.clear()

    def _time(self, line: LogLine, clock: Clock) -> float | None:
        self._skews.clear()
        seen = time_of(line.text, clock.year)
        if seen is not None and clock.year is None:
            clock.year = datetime.fromtimestamp(seen, UTC).year
        return seen

    def skew_s(self, file: str) -> float:
        """Seconds that the file's clock is ahead of the first file's; 0 where nothing is known."""
        if not self._skews:
            self._skews = estimate_skews(self.clocks)
        return self._skews.get(file, 0.0)

    def in_order(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings as they came. Those of files without stamps keep their place of reading."""
        kept = list(findings)
        files = {f.line.file for f in kept}
        if len(files) < 2 or any(f.time is None for f in kept):
            return sorted(kept, key=lambda f: f.order)
        return sorted(kept, key=lambda f: ((f.time or 0.0) - self.skew_s(f.line.file), f.order))


def estimate_skews(clocks: dict[str, Clock]) -> dict[str, float]:
    """Seconds that each file's clock is ahead of the first file's that shares steps with it."""
    skews: dict[str, float] = {}
    references: list[str] = []
    for name, clock in clocks.items():
        skews[name] = 0.0
        for other in references:
            shared = clocks[other].shared
            gaps = [at - shared[step] for step, at in clock.shared.items() if step in shared]
            if len(gaps) >= _MIN_SHARED and abs(median(gaps)) <= _MAX_SKEW_S:
                skews[name] = median(gaps) + skews[other]
                break
        else:
            if len(references) < _MAX_REFERENCES and clock.shared:
                references.append(name)
    return skews
