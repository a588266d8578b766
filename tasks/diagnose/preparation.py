"""How far data had been prepared before the first step, while other ranks may wait for it in a barrier."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_BAR = compile_pattern(
    r"(?P<percent>\d{1,3})%\|.{0,200}(?:examples|samples|rows|docs|documents|records|tokens)/s|"
    r"(?i)\b(?:tokeni[sz]|preprocess|map|filter|pack|group|shuffl|convert)\w*\b[^%]{0,80}?(?P<done>\d{1,3})%\|"
)
_ENOUGH = 3
_DONE = 100


@dataclass
class Preparation:
    """Feed it lines; it knows how much of the data was prepared at last, and whether that had grown steadily."""

    percent: int | None = None
    """By the last report."""
    advances: int = 0
    """Reports in a row that were further than the one before, and the first of them."""

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        if steps or "%|" not in line.body or (match := _BAR.search(line.body)) is None:
            return
        percent = int(match["percent"] or match["done"])
        if percent != self.percent:
            further = self.percent is not None and percent > self.percent
            self.advances = self.advances + 1 if further else 1
        self.percent = percent

    def merge(self, other: Preparation) -> None:
        """Add what later files tell."""
        if other.percent is not None:
            self.percent, self.advances = other.percent, other.advances

    def under_way(self) -> bool:
        """Whether it went on steadily, and was not done when the log ended."""
        return self.percent is not None and self.percent < _DONE and self.advances >= _ENOUGH


def tells_preparation(body: str) -> bool:
    """Whether the line reports how much of the data is prepared."""
    return "%|" in body and _BAR.search(body) is not None
