"""Findings of a scan: some of each kind in each stream, and so many in all.

A log can name any number of ranks, and repeat any error. The first of each kind tell how it began; those
that training went on after make room for later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from tasks.diagnose.findings import Finding
from tasks.diagnose.survival import Stream, Survival

MAX_ALIKE = 8
"""Of one method: in a stream, and beyond the bound for all."""
_MAX_IN_ALL = 32_768
_SWEEP_EVERY = 4096


@dataclass
class KeptFindings:
    """Findings by stream and method."""

    survival: Survival
    max_in_all: int = _MAX_IN_ALL
    left_out: int = 0
    """Findings that found no room."""
    _found: dict[Stream, dict[str, list[Finding]]] = field(default_factory=dict)
    _by_method: Counter[str] = field(default_factory=Counter)
    _count: int = 0
    _refusals: int = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Finding]:
        return chain.from_iterable(map(self.of_stream, self._found))

    def of_stream(self, stream: Stream) -> Iterator[Finding]:
        """Those of one stream."""
        return chain.from_iterable(self._found.get(stream, {}).values())

    def add(self, stream: Stream, finding: Finding) -> None:
        """Keep a finding, if there is room for it."""
        if not self._has_room(finding.method):
            self.left_out += 1
            return
        alike = self._found.setdefault(stream, {}).setdefault(finding.method, [])
        if len(alike) == MAX_ALIKE and self.survival.survived(alike[0]):
            alike.pop(0)
            self._note(finding.method, -1)
        if len(alike) < MAX_ALIKE:
            alike.append(finding)
            self._note(finding.method, 1)

    def drop(self, stream: Stream, unwanted: Callable[[Finding], bool]) -> None:
        """Forget those of a stream that are unwanted."""
        by_method = self._found.get(stream, {})
        for method, alike in list(by_method.items()):
            wanted = [f for f in alike if not unwanted(f)]
            self._note(method, len(wanted) - len(alike))
            by_method[method] = wanted
            if not wanted:
                del by_method[method]

    def take_over(self, others: KeptFindings, lines_before: int) -> None:
        """Take in those of files that were scanned apart, which come so many lines later."""
        for stream, by_method in others._found.items():
            self._found[stream] = {
                method: [replace(f, order=f.order + lines_before) for f in alike]
                for method, alike in by_method.items()
            }
        self._by_method.update(others._by_method)
        self._count += len(others)
        self.left_out += others.left_out

    def _note(self, method: str, more: int) -> None:
        self._by_method[method] += more
        self._count += more

    def _has_room(self, method: str) -> bool:
        """Whether one more fits. When all are many, of a kind that is rare, or after a clean-up."""
        if self._count < self.max_in_all or self._by_method[method] < MAX_ALIKE:
            return True
        if self._refusals % _SWEEP_EVERY == 0:
            for stream in list(self._found):
                self.drop(stream, self.survival.survived)
        self._refusals += 1
        return self._count < self.max_in_all
