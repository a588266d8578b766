"""The last line in which a program says that it leaves: of a rank that ends itself without an error, it tells why."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_LEAVES = compile_pattern(
    r"(?i)\b(?:exiting|leaving|quitting|bailing out|giving up|"
    r"(?:can ?not|unable to|will not|won't) (?:continue|proceed|start|run|train)|refus(?:es|ed|ing) to (?:continue|start|run|train))\b"
)
_WORDS = (
    "exiting",
    "leaving",
    "quitting",
    "bailing",
    "giving",
    "not ",
    "unable",
    "won't",
    "refus",
)
"""In lower case: a line with none of them is none."""


@dataclass
class PartingWords:
    """Feed it lines; it holds the last such line of each file, and the steps that the file had reported before it."""

    last: dict[str, tuple[LogLine, int]] = field(default_factory=dict)

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line."""
        if says_that_it_leaves(line.body):
            self.last[line.file] = (line, steps)

    def merge(self, other: PartingWords) -> None:
        """Add what other files tell."""
        self.last.update(other.last)

    def before(self, end: LogLine, steps: int) -> LogLine | None:
        """The file's last such line, if it stands before its end and no step was reported since."""
        line, told_at = self.last.get(end.file, (None, 0))
        return line if line is not None and line.number < end.number and told_at == steps else None


def says_that_it_leaves(body: str) -> bool:
    """Whether the line says that its program gives up."""
    lower = body.lower()
    return any(word in lower for word in _WORDS) and _LEAVES.search(body) is not None
