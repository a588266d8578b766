"""Whose processes held a node's memory, by the kernel's table of them.

Where most of it belongs to another user, the job is not to blame that one of its own was chosen to be killed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_BEGINS = "invoked oom-killer"
_ROW = compile_pattern(
    r"\[ *\d{1,10}\] +(?P<uid>\d{1,10}) +\d{1,10} +\d{1,15} +(?P<rss>\d{1,15}) .*\S$"
)
_KILLED = compile_pattern(r"(?i)killed process (?P<pid>\d{1,10}) .*\bUID:(?P<uid>\d{1,10})")
_MAX_NUMBERS = 4096


@dataclass
class HostMemory:
    """Follows the kernel's tables, one at a time."""

    foreign: set[tuple[str, int]] = field(default_factory=set)
    """Files and lines of kills for the sake of another user's processes, and of the tables that lead to them."""
    _begun: tuple[str, int] = ("", 0)
    _held: dict[str, int] = field(default_factory=dict)
    """By user: pages in memory."""

    def merge(self, other: HostMemory) -> None:
        """Add what other files hold."""
        self.foreign |= other.foreign

    def feed(self, line: LogLine) -> None:
        """Take note of one line."""
        if _BEGINS in line.body:
            self._begun, self._held = (line.file, line.number), {}
        elif self._begun[1] and self._begun[0] == line.file and "] " in line.body:
            self._note_row(line)

    def _note_row(self, line: LogLine) -> None:
        if (row := _ROW.search(line.body)) is not None and len(self._held) < _MAX_NUMBERS:
            self._held[row["uid"]] = self._held.get(row["uid"], 0) + int(row["rss"])
        elif (killed := _KILLED.search(line.body)) is not None:
            own = self._held.pop(killed["uid"], 0)
            if max(self._held.values(), default=0) > own and len(self.foreign) < _MAX_NUMBERS:
                self.foreign |= {self._begun, (line.file, line.number)}
            self._begun = ("", 0)


def tells_of_host_memory(body: str) -> bool:
    """Whether the line may be a row of the kernel's table."""
    return "] " in body and _ROW.search(body) is not None
