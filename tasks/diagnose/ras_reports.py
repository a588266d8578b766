"""Reports of NCCL's RAS service: which ranks are behind in the operations that they have launched, or missing.

A report tells of the many in one line and names the few, with the node of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import MAX_RANKS, LogLine
from tasks.diagnose.patterns import compile_pattern

_COUNT = compile_pattern(
    r"^\s*(?P<ranks>\d{1,6}) ranks? (?:have|has) launched up to operation (?P<number>\d{1,12})"
)
_RANK = compile_pattern(
    r"^\s*Rank (?P<rank>\d{1,6}) -- GPU \d+ managed by process \d+ on node (?P<node>[\w.:-]*\w)"
)
_PROCESS = compile_pattern(r"^\s*Process \d+ on node (?P<node>[\w.:-]*\w) managing GPUs? [\d, ]+")
_BEHIND, _MISSING = "managed by process", "managing GPU"
_COUNTED = "launched up to operation"
_MAX_NAMED = 64


@dataclass
class RasReports:
    """Feed it lines; it knows who was behind by the last report."""

    nodes: dict[int, str] = field(default_factory=dict)
    """By rank: of those that the last report says are behind."""
    missing_nodes: set[str] = field(default_factory=set)
    """Of processes that did not answer."""
    line: LogLine | None = None
    """The first that names one."""
    steps: int = 0
    """That its file had reported before it."""
    _counts: int = 0
    """Lines of the report that say how many ranks are how far."""
    _number: int = 0
    """The last operation that such a line names; and the least."""
    _least: int = 0

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        text = line.body
        if _COUNTED in text and (match := _COUNT.match(text)) is not None:
            self._note_count(int(match["number"]))
        elif _BEHIND in text and (match := _RANK.match(text)) is not None:
            self._note_rank(int(match["rank"]), match["node"], line)
            self.steps = steps
        elif _MISSING in text and (match := _PROCESS.match(text)) is not None:
            self.line, self.steps = self.line or line, steps
            if self._room():
                self.missing_nodes.add(match["node"])

    def _note_count(self, number: int) -> None:
        if not self._counts or self.nodes:
            self._counts, self._least, self.nodes, self.line = 0, number, {}, None
        self._counts += 1
        self._number, self._least = number, min(number, self._least)

    def _note_rank(self, rank: int, node: str, line: LogLine) -> None:
        behind = self._counts > 1 and self._number == self._least
        if behind and rank < MAX_RANKS and self._room():
            self.nodes[rank] = node
            self.line = self.line or line

    def _room(self) -> bool:
        return len(self.nodes) + len(self.missing_nodes) < _MAX_NAMED

    def merge(self, other: RasReports) -> None:
        """Take over a later report, and who is missing in both."""
        if other._counts:
            self.nodes, self.line, self.steps = other.nodes, other.line, other.steps
            self._counts, self._number, self._least = other._counts, other._number, other._least
        elif other.line is not None:
            self.line, self.steps = self.line or other.line, other.steps
        self.missing_nodes |= other.missing_nodes

    @property
    def node(self) -> str | None:
        """The node that all who are behind or missing are on."""
        nodes = set(self.nodes.values()) or self.missing_nodes
        return next(iter(nodes)) if len(nodes) == 1 else None


def tells_of_ranks_behind(body: str) -> bool:
    """Whether the line may be one of such a report."""
    return _COUNTED in body or _BEHIND in body or _MISSING in body
