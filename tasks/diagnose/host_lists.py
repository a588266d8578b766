"""Hosts that lists tell: of a job's hosts in order, of each host's ranks, of a host's place and its processes.

Ranks go through hosts in the order of the list, as launchers place them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tasks.diagnose.host_names import MAX_HOSTS, family_of, may_name_host, only_host_in
from tasks.diagnose.node_lists import expand_hosts
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.rank_spans import (
    RANKS_OF_RANGE,
    all_ranges,
    hosts_of_row,
    numbered_hosts,
    span_in_columns,
    spans_of_hosts,
    tells_ranks,
)

_SLOTS = compile_pattern(
    r"(?:^|\s)(?P<host>[A-Za-z][\w.-]*)(?: +# ?| )(?:slots|max_slots) ?= ?(?P<count>\d{1,3})\b"
)
_NODE_RANK = compile_pattern(r"(?i)\bnode[_-]rank[ =:]+(?P<key>\d{1,5})\b")
_PROCESSES = compile_pattern(
    r"(?i)\bn(?:um_)?proc(?:esse)?s?(?:[_-]per[_-]node)?[ =:]+(?P<key>\d{1,3})\b"
)
_FIRST_RANK = compile_pattern(
    r"(?i)\b(?:rank[_ ]offset|first[_ ]rank|base[_ ]rank)[ =:]+(?P<key>\d{1,6})\b"
)
_EACH = compile_pattern(
    r"(?i)\b(?P<key>\d{1,3}) (?:procs?|process(?:es)?|gpus?|ranks|slots|workers)(?: each| per (?:node|host)|/(?:node|host))"
)
_ON_NODE = compile_pattern(
    r"(?i)\b(?:SLURM_GPUS_ON_NODE|SLURM_(?:N?TASKS|GPUS)_PER_NODE|n(?:um_)?proc(?:esse)?s?[_-]per[_-]node|gpus[_-]per[_-]node)"
    r"[ =:]+(?P<set>\d{1,3})\b|"
    r"\b(?P<said>\d{1,3}) (?:procs?|process(?:es)?|gpus?|ranks|workers) (?:an?|each|per|on (?:each|every)) (?:node|host|machine)\b|"
    r"\brank ?= ?(?P<formula>\d{1,3}) ?\* ?\w+ ?\+"
)
_WORLD = compile_pattern(r"(?i)\bworld[_ ]?size[ =:]{1,3}(?P<world>\d{1,6})\b")
_ON_NODE_WORDS = ("node", "host", "machine", "rank =", "rank=")
_LSF = re.compile(r"<(\d{1,3})\*([A-Za-z][\w.-]*)>")
_MAP_NODE = compile_pattern(r"^\s*Data for node: (?P<host>[A-Za-z][\w.-]*)")
_MAP_RANK = compile_pattern(r"\bProcess rank: (?P<rank>\d{1,6})\b")
"""Of mpirun's --display-map."""
_WORD = re.compile(r"[A-Za-z][\w-]{1,62}(?:\.[\w-]{1,62}){0,8}")
_BETWEEN = re.compile(r"(?:=[\d.]+|\([\d.]+\)|:\d+)?[\s,;|]+")
_MAX_ALONE_CHARS = 80
_MAX_SLOTS = 64
_MAX_PLACED = 200_000


@dataclass
class HostLists:
    """Feed it lines; it holds what their lists tell, in bounded memory."""

    hosts: dict[str, None] = field(default_factory=dict)
    """Of lists, in order."""
    slots: dict[str, int] = field(default_factory=dict)
    """Processes of each host of a host file, in order."""
    ranges: dict[int, str] = field(default_factory=dict)
    """Hosts by rank, of lines that name the ranks of each."""
    starts: dict[int, str] = field(default_factory=dict)
    """Hosts by their first rank."""
    each: int | None = None
    """Processes of a host."""
    on_node: int | None = None
    """The same, as the launch or its environment has it."""
    job: dict[str, None] = field(default_factory=dict)
    """The job's own hosts, in the scheduler's order."""
    world: int = 0
    """How many ranks there are, as the first line that tells has it."""
    _job_list: str = ""
    _job_is_certain: bool = False
    """The environment has it so, which no other list outweighs."""
    last_rank: int = 0
    """The highest that was met."""
    mapped: dict[int, str] = field(default_factory=dict)
    """Hosts by rank, as mpirun's map has them."""
    _map_node: str | None = None
    columns: dict[int, str] = field(default_factory=dict)
    """Hosts by rank, of a table with the first and the last rank of each."""
    _bare: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """Names that stand alone in a line, by family."""
    _seen: set[tuple[int, int]] = field(default_factory=set)
    """First and last rank of ranges."""
    _placed: int = 0
    """Ranks in all of them."""

    def feed(self, text: str, label: str | None) -> None:
        """Take note of what the line may tell. `label`: the host that a launcher has put before it."""
        if max(len(self.hosts), len(self.slots), len(self.ranges), len(self.mapped)) >= MAX_HOSTS:
            return
        lower = text.lower()
        if "data for node" in lower and (match := _MAP_NODE.match(text)):
            self._map_node = match["host"]
        if self._map_node and "Process rank" in text and (match := _MAP_RANK.search(text)):
            self.mapped.setdefault(int(match["rank"]), self._map_node)
            return
        if "rank" in lower or "process" in lower:
            self._note_ranges(text, label)
            self._note_start(text, label)
        if (row := span_in_columns(text)) is not None:
            self._note_columns(*row)
        if "slots" in lower and (match := _SLOTS.search(text)):
            self.slots.setdefault(match["host"], int(match["count"]))
        if any(word in lower for word in _ON_NODE_WORDS) and (match := _ON_NODE.search(text)):
            count = next(int(found) for found in match.groupdict().values() if found)
            self.on_node = max(self.on_node or 0, count)
        if not self.world and "world" in lower and (match := _WORLD.search(text)):
            self.world = int(match["world"])
        self._note_names(text)
        if "*" in text and len(slots := _LSF.findall(text)) > 1:
            self.slots.update({host: int(count) for count, host in slots if host not in self.slots})
        for rank, name in enumerate(hosts_of_row(text)):
            self._place(rank, rank, name)
        for low, high, name in spans_of_hosts(text):
            self._place(low, high, name)
        if "=" in text or ":" in text:
            self.hosts.update(dict.fromkeys(numbered_hosts(text)))

    def _note_columns(self, low: int, high: int, host: str) -> None:
        """Of rows that each go on where the one before ended."""
        if low == 0:
            self.columns.clear()
        if low == len(self.columns) and high < RANKS_OF_RANGE:
            self.columns.update(dict.fromkeys(range(low, high + 1), host))

    def note_job(self, text: str, *, certain: bool) -> None:
        """A list of nodes as Slurm writes it: the first that is met, and then what the environment has."""
        if "[" not in text or (self.job and not certain):
            return
        self._job_is_certain = certain
        if text != self._job_list:
            self._job_list, self.job = text, dict.fromkeys(expand_hosts(text))

    def _note_ranges(self, text: str, label: str | None) -> None:
        """Each host stands before its ranks, or each behind them; a label may stand for all."""
        found = all_ranges(text)
        if not found:
            return
        cuts = [0, *(end for _, _, _, end in found)]
        several = len(found) > 1
        before = [
            _last_name(text[cut:start], several)
            for cut, (_, _, start, _) in zip(cuts, found, strict=False)
        ]
        starts = [start for _, _, start, _ in found[1:]] + [len(text)]
        after = [
            _first_name(text[end:start], several)
            for (_, _, _, end), start in zip(found, starts, strict=True)
        ]
        names = before if all(before) else after if all(after) else [label] if not several else []
        for (low, high, _, _), name in zip(found, names, strict=False):
            if name is not None and 0 <= high - low < RANKS_OF_RANGE:
                self._place(low, high, name)

    def _place(self, low: int, high: int, name: str) -> None:
        """Note the host of a range of ranks: once, for lines repeat; the first word on a rank counts."""
        if (low, high) in self._seen or self._placed >= _MAX_PLACED:
            return
        self._seen.add((low, high))
        self._placed += high - low + 1
        for rank in range(low, high + 1):
            self.ranges.setdefault(rank, name)

    def _note_start(self, text: str, label: str | None) -> None:
        host = label or only_host_in(text)
        if host is None or len(self.starts) >= MAX_HOSTS:
            return
        if match := _FIRST_RANK.search(text):
            self.starts.setdefault(int(match["key"]), host)
        node, processes = _NODE_RANK.search(text), _PROCESSES.search(text)
        if node and processes:
            self.each = int(processes["key"])
            self.starts.setdefault(int(node["key"]) * self.each, host)

    def _note_names(self, text: str) -> None:
        """A row of names, or one that is alone in its line."""
        alone = text.strip()
        if len(alone) < _MAX_ALONE_CHARS and _WORD.fullmatch(alone):
            if may_name_host(alone) and len(self._bare) < MAX_HOSTS:
                self._note_bare(family_of(alone), [alone])
            return
        row = _row_of_names(text)
        if len(row) > 1:
            self.hosts.update(dict.fromkeys(row))
            if match := _EACH.search(text):
                self.each = int(match["key"])

    def _note_bare(self, family: str, names: Iterable[str]) -> None:
        """Names of one family that stood alone: hosts, if there are several."""
        known = self._bare[family]
        new = dict.fromkeys(name for name in names if name not in known)
        if len(known) + len(new) > 1:
            self.hosts.update(new if len(known) > 1 else {**known, **new})
        known.update(new)

    def merge(self, other: HostLists) -> None:
        """Add what other lines of the same job told."""
        self.hosts = {**self.hosts, **other.hosts}
        for host, count in other.slots.items():
            self.slots.setdefault(host, count)
        self.ranges = {**other.ranges, **self.ranges}
        self.starts = {**other.starts, **self.starts}
        self.mapped = {**other.mapped, **self.mapped}
        self.columns = max(self.columns, other.columns, key=len)
        if other.job and (other._job_is_certain or not self.job):
            self.job, self._job_list = other.job, other._job_list
            self._job_is_certain = other._job_is_certain
        self.on_node = max(self.on_node or 0, other.on_node or 0) or None
        self.world = self.world or other.world
        self.last_rank = max(self.last_rank, other.last_rank)
        self.each = other.each or self.each
        for family, names in other._bare.items():
            self._note_bare(family, names)

    def by_rank(self) -> dict[int, str]:
        """Hosts by rank, as lines name ranks."""
        if self.mapped:
            return self.mapped
        if len(set(self.ranges.values())) > 1:
            return self.ranges
        if len(set(self.columns.values())) > 1:
            return self.columns
        return filled(self.starts, self.each)

    def by_order(self) -> dict[int, str]:
        """Hosts by rank, by the order of hosts and their numbers of processes alone."""
        if len(self.slots) > 1:
            placed = [
                host for host, count in self.slots.items() for _ in range(min(count, _MAX_SLOTS))
            ]
            return dict(enumerate(placed))
        if self.each and len(self.hosts) > 1:
            return filled({at * self.each: host for at, host in enumerate(self.hosts)}, self.each)
        return {}

    def by_launch(self) -> dict[int, str]:
        """Where launchers place ranks by themselves: through the job's hosts, as many on each."""
        hosts, each = list(self.job or self.hosts), self.on_node
        if not each and self.job and self.world % len(hosts) == 0:
            each = self.world // len(hosts)
        if not each or len(hosts) < 2 or self.last_rank >= each * len(hosts):
            return {}
        return filled({at * each: host for at, host in enumerate(hosts)}, each)


def may_be_list(text: str) -> bool:
    """Whether the line may tell hosts, or one of a list of them."""
    telling = (_SLOTS, _NODE_RANK, _FIRST_RANK)
    alone = text.strip()
    return (
        tells_ranks(text)
        or any(pattern.search(text) for pattern in telling)
        or _MAP_NODE.match(text) is not None
        or _ON_NODE.search(text) is not None
        or _WORLD.search(text) is not None
        or len(_LSF.findall(text)) > 1
        or _MAP_RANK.search(text) is not None
        or (len(alone) < _MAX_ALONE_CHARS and _WORD.fullmatch(alone) is not None)
        or len(_row_of_names(text)) > 1
    )


def filled(starts: dict[int, str], each: int | None = None) -> dict[int, str]:
    """Hosts of all ranks by those of some: of hosts whose first ranks are equally far apart.

    `each`: how far, if it is known.
    """
    ranks = sorted(starts)
    steps = {after - before for before, after in pairwise(ranks)}
    step = each if each is not None else min(steps, default=0)
    if each is None and len(steps) != 1:
        return {}
    return {s + at: starts[s] for s in ranks for at in range(min(step, RANKS_OF_RANGE))}


def _names(text: str, of_any_kind: bool) -> Iterable[str]:
    """Names that hosts may have; where several stand in a row of ranges, also those without a digit."""
    for word in _WORD.findall(text):
        if may_name_host(word) or (of_any_kind and "-" in word):
            yield word


def _last_name(text: str, of_any_kind: bool) -> str | None:
    names = list(_names(text, of_any_kind))
    return names[-1] if names else None


def _first_name(text: str, of_any_kind: bool) -> str | None:
    return next(iter(_names(text, of_any_kind)), None)


def _row_of_names(text: str) -> list[str]:
    """The first row of names of one family with nothing but blanks, commas, addresses or ports between."""
    row: list[str] = []
    end = 0
    for match in _WORD.finditer(text):
        word = match[0]
        if not may_name_host(word) or text[match.start() - 1 : match.start()] in ("/", "=", "."):
            continue
        joined = bool(row) and _BETWEEN.fullmatch(text[end : match.start()]) is not None
        if joined and family_of(word) == family_of(row[0]):
            row.append(word)
        elif len(row) > 1:
            break
        else:
            row = [word]
        end = match.end()
    return row
