"""Lists of nodes as Slurm writes them: gpu-[01-03,07],login1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from tasks.diagnose.host_names import MAX_HOSTS, NAMES, family_of
from tasks.diagnose.patterns import compile_pattern

_HEADER = compile_pattern(
    r"(?i)(?:NODELIST=|node ?list:?\s+|\bnodes\s*:\s+|\bnode\(s\):\s+|\bhosts?\s*:\s+|hostnames |running on (?:host )?)"
    r"(?P<list>[A-Za-z][\w.,\[\]-]*)"
)
_LIST = compile_pattern(
    r"(?i)\b(?:nodes?|hosts?|allocation|allocated|nodelist|on)[:= ]+(?P<list>[a-z][\w.-]*\[\d[\d,-]*\][\w.,\[\]-]*)"
)
"""A list in Slurm's way, which is seldom of anything else."""
_RANGE = re.compile(r"^(?P<stem>[^\[\]]*)\[(?P<ranges>[\d,-]+)\](?P<rest>.*)$")
_SPAN = re.compile(r"(?P<low>\d{1,9})(?:-(?P<high>\d{1,9}))?")
_MAX_EXPANDED = 200_000


@dataclass
class NodeLists:
    """Expands the lists of a log: each once, for every rank may print it, and only so many names in all."""

    _families: dict[str, set[str]] = field(default_factory=dict)
    """Of the names of each list."""
    _tasks: set[tuple[str, str]] = field(default_factory=set)
    _left: int = _MAX_EXPANDED
    """Names, numbers and characters that may still be looked at."""

    def names(self, text: str, behind: str) -> list[str]:
        """New names with a number: of a list, and of its families behind it, whatever stands between them."""
        names: list[str] = []
        families = self._families.get(text)
        if families is None:
            if self._left <= 0 and "[" in text:
                return []
            names = expand_hosts(text)
            families = {family_of(name) for name in names}
            if "[" in text:
                self._left -= max(len(names), len(text))
                self._families[text] = families
        names += [name for name in NAMES.findall(behind) if family_of(name) in families]
        return [name for name in names if any(c.isdigit() for c in name)]

    def tasks(self, host: str, text: str) -> list[int]:
        """New numbers of a list of a host's tasks."""
        if "-" not in text:
            return numbers_in(text)
        if self._left <= 0 or (host, text) in self._tasks:
            return []
        numbers = numbers_in(text)
        self._left -= max(len(numbers), len(host) + len(text))
        self._tasks.add((host, text))
        return numbers


def list_in(text: str) -> tuple[str, str] | None:
    """A list of the job's nodes, and the rest of the line behind it."""
    if not ("ost" in text or "ode" in text or "NODELIST" in text or "[" in text):
        return None
    match = _HEADER.search(text) or _LIST.search(text)
    return None if match is None else (match["list"], text[match.end() :])


def expand_hosts(text: str, most: int = MAX_HOSTS) -> list[str]:
    """Names of a Slurm node list: gpu-[01-03,07],login1. So many at most: a few digits can be millions."""
    return list(islice(_hosts_in(text), most))


def numbers_in(text: str) -> list[int]:
    """Of a list like 0-3,8: 0, 1, 2, 3, 8. At most MAX_HOSTS."""
    spans = filter(None, map(_SPAN.fullmatch, text.split(",")))
    numbers = (n for s in spans for n in range(int(s["low"]), int(s["high"] or s["low"]) + 1))
    return list(islice(numbers, MAX_HOSTS))


def _hosts_in(text: str) -> Iterator[str]:
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,]*)?", text):
        match = _RANGE.match(part)
        if match is None:
            yield part
            continue
        for span in filter(None, map(_SPAN.fullmatch, match["ranges"].split(","))):
            low, high = span["low"], span["high"] or span["low"]
            for number in range(int(low), int(high) + 1):
                yield f"{match['stem']}{number:0{len(low)}d}{match['rest']}"
