"""Ranges of ranks as lists of hosts name them, and hosts that a row numbers."""

from __future__ import annotations

import re
from itertools import pairwise

from tasks.diagnose.host_names import family_of, may_name_host
from tasks.diagnose.patterns import compile_pattern

_RANKS = compile_pattern(
    r"(?i)\b(?:rank|process|proc)(?:e?s)?[ =:]*\[?(?P<low>\d{1,6}) ?(?:-|\.\.\.?|to|\x{2013}) ?(?P<high>\d{1,6})\b|"
    r"\"(?:global_)?ranks?(?:_range)?\" ?: ?\[(?P<pair>\d{1,6}(?:, ?\d{1,6})+)\]|"
    r"(?i)\branks?[ =:]*\[?(?P<row>\d{1,6}(?:, ?\d{1,6})+)"
)
_SPAN_OF_HOST = re.compile(r"(?:^|[\s|,;(])(\d{1,6})-(\d{1,6})[:= ]{1,3}([A-Za-z][\w.-]{1,80}\w)")
_HOST_OF_SPAN = re.compile(
    r"(?:^|[\s|,;(])([A-Za-z][\w.-]{1,80}\w)[:= ]{1,3}[\[(]?(\d{1,6})-(\d{1,6})\b"
)
_NUMBERED = re.compile(r"(?:^|[\s|,;(\[])(\d{1,5})[:=] ?([A-Za-z][\w.-]{1,80}\w)")
_PAIR = re.compile(r"[\s,{(\[\"'](\d{1,6})[\"']? ?(?::|=|->|=>) ?[\"']?([A-Za-z][\w.-]{1,80}\w)")
_COLUMNS = re.compile(
    r"\s{0,8}(?:\d{1,5}[\s|,;]{1,8})?([A-Za-z][\w.-]{1,80}\w)[\s|,;]{1,8}(\d{1,6})[\s|,;-]{1,8}(\d{1,6})$"
)
RANKS_OF_RANGE = 4096

Span = tuple[int, int, str]
"""First rank, last rank, host."""


def span_in_columns(text: str) -> tuple[int, int, str] | None:
    """First rank, last rank and host of a row that has them in columns, as `4  gpu05  32  39`."""
    match = _COLUMNS.match(text) if text[-1:].isdigit() else None
    if match is None or not may_name_host(match[1]) or int(match[2]) > int(match[3]):
        return None
    return int(match[2]), int(match[3]), match[1]


def tells_ranks(text: str) -> bool:
    """Whether the line may say which ranks, or in what order, hosts have."""
    if span_in_columns(text) is not None or _RANKS.search(text) is not None:
        return True
    return bool(spans_of_hosts(text) or numbered_hosts(text) or hosts_of_row(text))


def all_ranges(text: str) -> list[tuple[int, int, int, int]]:
    """All ranges of ranks: first, last, where it begins and ends in the text."""
    found, at = [], 0
    while match := _RANKS.search(text[at:]):
        end = at + match.end()
        if (span := _span_in(match.groupdict())) is not None:
            found.append((*span, end - len(match[0]), end))
        at = end
    return found


def _span_in(told: dict[str, str | None]) -> tuple[int, int] | None:
    """First and last rank, of two numbers or of a row that leaves none out."""
    if told["low"] is not None:
        return int(told["low"]), int(told["high"] or told["low"])
    row = [int(number) for number in (told["pair"] or told["row"] or "").split(",")]
    whole = row == list(range(row[0], row[-1] + 1))
    return (row[0], row[-1]) if whole or (told["pair"] and len(row) == 2) else None


def hosts_of_row(text: str) -> list[str]:
    """Hosts of all ranks, of one record that has each beside its rank: {"0": "a1", "1": "a1", "2": "a2"}."""
    found = _PAIR.findall(text) if "ank" in text else []
    names = [name for _, name in found]
    in_order = all(int(number) == at for at, (number, _) in enumerate(found))
    shared = len(names) >= 2 * len(set(names)) > 2
    return names if in_order and shared and all(map(may_name_host, set(names))) else []


def spans_of_hosts(text: str) -> list[Span]:
    """Hosts beside numbers that go on from one to the next, as ranks do: 0-7 a1 | 8-15 a2, or a1: 0-7, a2: 8-15."""
    if "-" not in text:
        return []
    behind = [(int(low), int(high), name) for low, high, name in _SPAN_OF_HOST.findall(text)]
    before = [(int(low), int(high), name) for name, low, high in _HOST_OF_SPAN.findall(text)]
    return behind if _go_on(behind) else before if _go_on(before) else []


def _go_on(spans: list[Span]) -> bool:
    if len(spans) < 2 or spans[0][0] != 0 or spans[-1][1] >= RANKS_OF_RANGE:
        return False
    if any(after[0] != before[1] + 1 for before, after in pairwise(spans)):
        return False
    return all(low <= high and may_name_host(name) for low, high, name in spans)


def numbered_hosts(text: str) -> list[str]:
    """Hosts of one family that a row numbers from 0 on: 0=a1 1=a2 2=a5."""
    found = _NUMBERED.findall(text)
    names = [name for _, name in found]
    in_order = len(found) > 1 and all(int(number) == at for at, (number, _) in enumerate(found))
    alike = in_order and len({family_of(name) for name in names}) == 1 == len(set(names)) // len(
        names
    )
    return names if alike and all(may_name_host(name) for name in names) else []
