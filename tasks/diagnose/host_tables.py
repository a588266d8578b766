"""Hosts that lines of one wording tell: what stands beside a rank or an address, and changes with it.

Start-up lines put it in ever other words ("hello from rank 3/16 on gpu07", "[init] r3 @ gpu07",
"10.1.0.7  gpu07"), so no wording is looked for. Lines that differ by numbers and one name alone make a
table; it tells hosts if it does what such a table must: neighbouring ranks share a host, or each address
has one, and the names are a family.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from tasks.diagnose.host_lists import HostLists, filled, may_be_list
from tasks.diagnose.host_names import (
    DIGITS,
    address_in,
    family_of,
    host_tokens,
    label_of,
    short_name,
)
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_RANK = compile_pattern(
    r"(?i)(?:^|[^a-z0-9])(?P<what>(?:[a-z]+[_ ])?(?:rank(?:[ _-]?map)?|process(?:_id|_index)?|proc)|global|r|p)[ =:#(\"']{0,4}(?P<key>\d{1,6})(?:[^\w.]|$)"
)
NOT_OF_THE_JOB = ("local", "node", "group", "tp", "pp", "dp", "ep", "cp", "parallel", "eval")
"""Ranks within something smaller, or other than all processes."""
_NO_TABLE = compile_pattern(
    r"(?i)warn|error|peer|remote|connect|refused|closed|fail|time|unreachable|master|rdzv|endpoint|store"
)
"""Lines that tell of others than their writer."""
_MASTER = re.compile(r"(?i)\bmaster_(?:addr|port)[=:] ?\S+")
"""A setting that all ranks have alike."""
_COLUMN = re.compile(r"\s*[\[(<{] ?(\d{1,5})[\])>}]:? ")
"""A number before a line, which is a rank's if neighbours share a host."""
_NUMBERS = re.compile(
    r"(?<![A-Za-z])[0-9a-fA-F]{6,}(?![A-Za-z])|\b(?:\d[0-9a-fA-F]|[0-9a-fA-F]\d)\b|\d+"
)
"""Numbers, long hexadecimal ones, and the bytes of addresses."""
_LINES_OF_A_KEY = 48
_LABELS_HELD = 4096
_MIN_WRITERS = 3
_MAX_SHAPES = 512
_MAX_ENTRIES = 50_000
_MAX_TOKENS = 6
_SHAPE_CHARS = 160
_MIN_COMMON_CHARS = 2

Table = dict[str, str]


@dataclass
class HostTables:
    """Feed it lines; it holds what they may tell of hosts, in bounded memory."""

    ranks: dict[str, Table] = field(default_factory=dict)
    """By wording: hosts by rank."""
    addresses: dict[str, Table] = field(default_factory=dict)
    """By wording: hosts by address."""
    columns: dict[str, Table] = field(default_factory=dict)
    """By wording: hosts by the number that stands before the line."""
    lists: HostLists = field(default_factory=HostLists)
    labels: Counter[str] = field(default_factory=Counter)
    """What stands before lines where a host may."""
    _last_labels: deque[str] = field(default_factory=lambda: deque(maxlen=_LABELS_HELD))
    _label_files: set[str] = field(default_factory=set)
    """Where they stand: of several, nothing tells who wrote last."""
    _looked_at: Counter[str] = field(default_factory=Counter)
    _entries: int = 0

    def feed(self, line: LogLine) -> None:
        """Take note of what the line may tell."""
        text = line.text
        label = self._note_label(text, line.file)
        self.lists.feed(text, label)
        rank = _rank_in(line)
        if line.rank is not None:
            self.lists.last_rank = max(self.lists.last_rank, line.rank)
        if rank is not None:
            self._note(self.ranks, rank, text)
        elif (number := column_of(text)) is not None:
            self._note(self.columns, str(number), text)
        if text.count(".") >= 3 and (address := address_in(text)) is not None:
            self._note(self.addresses, address, text)

    def _note_label(self, text: str, file: str) -> str | None:
        label = label_of(text)
        if label is None:
            return None
        if len(self.labels) < _MAX_SHAPES or label in self.labels:
            self.labels[label] += 1
            if "NCCL INFO" not in text:
                self._last_labels.append(label)
                self._label_files.add(file)
        return label

    def _note(self, tables: dict[str, Table], key: str, text: str) -> None:
        text = _MASTER.sub("", text)
        if self._entries >= _MAX_ENTRIES or _NO_TABLE.search(text):
            return
        if len(self._looked_at) < _MAX_ENTRIES:
            self._looked_at[key] += 1
        if not 0 < self._looked_at[key] <= _LINES_OF_A_KEY:
            return
        for host in host_tokens(text)[:_MAX_TOKENS]:
            short = short_name(host)
            shape = _NUMBERS.sub("#", text.replace(host, "\x01").replace(short, "\x01"))[
                :_SHAPE_CHARS
            ]
            table = tables.get(shape)
            if table is None:
                if len(tables) >= _MAX_SHAPES:
                    continue
                table = tables[shape] = {}
            self._enter(table, key, host)

    def _enter(self, table: Table, key: str, host: str) -> None:
        if key not in table:
            table[key] = host
            self._entries += 1
        elif table[key] != host:
            table[key] = ""  # Of no use: one key, two names.

    def merge(self, other: HostTables) -> None:
        """Add what other lines of the same job told."""
        for mine, theirs in (
            (self.ranks, other.ranks),
            (self.columns, other.columns),
            (self.addresses, other.addresses),
        ):
            for shape, table in theirs.items():
                if shape not in mine and len(mine) >= _MAX_SHAPES:
                    continue
                own = mine.setdefault(shape, {})
                for key, host in table.items():
                    if key in own or self._entries < _MAX_ENTRIES:
                        self._enter(own, key, host)
        self.lists.merge(other.lists)
        self.labels += other.labels
        self._last_labels.extend(other._last_labels)
        self._label_files |= other._label_files

    def by_rank(self, known: set[str]) -> dict[int, str]:
        """Hosts by rank. `known`: names that are hosts' for certain."""
        found: dict[int, str] = {}
        for table in self.ranks.values():
            hosts = {int(rank): host for rank, host in table.items() if host}
            if _is_rank_table(hosts, known):
                first_ranks = 0 in hosts and len(set(hosts.values())) == len(hosts)
                found = {**(filled(hosts) if first_ranks else {}), **hosts, **found}
        return {**self.lists.by_order(), **found, **self.lists.by_rank()}

    def by_column(self, known: set[str]) -> dict[int, str]:
        """Hosts by the numbers before lines, if several of them share each of these."""
        found: dict[int, str] = {}
        for table in self.columns.values():
            hosts = {int(number): host for number, host in table.items() if host}
            if len(hosts) >= 2 * len(set(hosts.values())) and _is_rank_table(hosts, known):
                found = {**hosts, **found}
        return found

    def by_address(self) -> dict[str, str]:
        """Hosts by address."""
        found: dict[str, str] = {}
        for table in self.addresses.values():
            hosts = {address: host for address, host in table.items() if host}
            one_each = len({short_name(host) for host in hosts.values()}) == len(hosts)
            if len(hosts) > 1 and one_each and _are_alike(set(hosts.values())):
                found = {**hosts, **found}
        return found

    def labelled(self) -> set[str]:
        """Hosts that stand before lines: names of one family, of which there are several."""
        families: defaultdict[str, set[str]] = defaultdict(set)
        for name in self.labels:
            families[family_of(name)].add(name)
        several = {name for names in families.values() if len(names) > 1 for name in names}
        return several | set(self.lists.hosts) | set(self.lists.slots)

    def silent_writer(self) -> str | None:
        """The one host that has stopped to write while the others of its family, who wrote no more, go on."""
        hosts = self.labelled()
        if len(hosts) < _MIN_WRITERS or len(self._label_files) > 1:
            return None
        last = list(self._last_labels)
        behind = [h for h in hosts if h in last and _have_gone_on(hosts - {h}, last, h)]
        usual = median(self.labels[h] for h in hosts)
        regular = [h for h in behind if 2 * self.labels[h] >= usual]
        return regular[0] if len(regular) == 1 else None


def column_of(text: str) -> int | None:
    """The number that stands before a line."""
    match = _COLUMN.match(text)
    return None if match is None else int(match[1])


def may_be_table(body: str) -> bool:
    """Whether the line may be one of a table of hosts."""
    if may_be_list(body):
        return True
    body = _MASTER.sub("", body)
    if _NO_TABLE.search(body) or not host_tokens(body):
        return False
    if _RANK.search(body) is not None or column_of(body) is not None:
        return True
    return address_in(body) is not None


def names_beside_rank(line: LogLine) -> bool:
    """Whether a line that a launcher has labelled with its rank has a word that may be its host."""
    if line.rank is None or _NO_TABLE.search(_MASTER.sub("", line.text)):
        return False
    return bool(host_tokens(line.text))


def _rank_in(line: LogLine) -> str | None:
    """The rank that the line speaks of, else the one that wrote it."""
    rest = line.body
    while match := _RANK.search(rest):
        what = match["what"].lower()
        if not what.startswith(NOT_OF_THE_JOB):
            return str(match["key"])
        rest = rest[match.end() - 1 :]
    return None if line.rank is None else str(line.rank)


def _have_gone_on(others: set[str], last: list[str], host: str) -> bool:
    """Whether all others have written since the host's last line, and one more than a round of it."""
    first, after = last.index(host), len(last) - last[::-1].index(host)
    since = Counter(last[after:])
    if after - first == last.count(host):
        return False  # It wrote all in one go, as in a listing that goes from host to host.
    return all(since[other] for other in others) and max(since[o] for o in others) > 1


def _is_rank_table(hosts: dict[int, str], known: set[str]) -> bool:
    names = set(hosts.values())
    if len(names) < 2 or not _are_alike(names):
        return False
    if not names & known and all(_ends_with(host, rank) for rank, host in hosts.items()):
        return False  # A name made of the rank: a thread's, a shard's.
    return _are_blocks([hosts[rank] for rank in sorted(hosts)])


def _ends_with(host: str, rank: int) -> bool:
    numbers = DIGITS.findall(host)
    return bool(numbers) and int(numbers[-1]) == rank


def _are_blocks(names: list[str]) -> bool:
    """Whether none comes again after another."""
    changes = sum(before != after for before, after in pairwise(names))
    return changes == len(set(names)) - 1


def _are_alike(names: set[str]) -> bool:
    """Whether names may be those of one cluster's hosts."""
    starts = {name[:_MIN_COMMON_CHARS] for name in names}
    return len({family_of(name) for name in names}) == 1 or len(starts) == 1
