"""What compression leaves: kept lines with their numbers, and what was folded and dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tasks.diagnose.logs import LogLine
from tasks.diagnose.sources import Source
from tasks.diagnose.templates import Template
from tasks.diagnose.verbatim import Position, TracebackGroup, Verbatim


@dataclass(frozen=True)
class Limits:
    """Bounds of memory, and how much is kept as it is."""

    max_templates: int = 4000
    """Of ordinary lines, and as many of causes."""
    max_cached_bytes: int = 8 << 20
    """Forms of lines whose template is known without a look at the text."""
    max_tracebacks: int = 500
    max_lines: int = 20_000
    """Kept as they are, over all sources."""
    max_bytes: int = 8 << 20
    verbatim_per_template: int = 4
    """First lines of a template that can be a cause, with what is around them."""
    context_before: int = 3
    context_after: int = 5
    tail_lines: int = 8
    """Last lines of each source."""
    tails: int = 64
    """Of the sources after so many, the last line only."""
    ranks_per_block: int = 64


@dataclass(frozen=True)
class Compressed:
    """The compressed logs of a job."""

    sources: tuple[Source, ...]
    lines: int
    """As `wc -l` counts them, and a last one without newline."""
    verbatim: list[tuple[Position, Verbatim]]
    left_out: int
    """Lines that could be causes and found no room; 0 but for floods of errors that all differ."""
    templates: list[Template]
    tracebacks: list[TracebackGroup]

    @property
    def kept_lines(self) -> int:
        """Lines that are kept as they are."""
        return len(self.verbatim)

    @property
    def ratio(self) -> float:
        """Lines for each one that is kept."""
        return self.lines / max(1, self.kept_lines)

    @property
    def kept(self) -> list[LogLine]:
        """The kept lines, in the order of the sources and of each source's lines."""
        return [entry.line for _, entry in self.verbatim]

    @property
    def folded(self) -> list[Template]:
        """Templates of lines that no rule drops."""
        return [t for t in self.templates if t.kind != "dropped"]

    def dropped(self) -> Counter[str]:
        """Lines by the rule that dropped them."""
        return Counter({t.text: t.count for t in self.templates if t.kind == "dropped"})
