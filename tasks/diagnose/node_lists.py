"""Lists of nodes as Slurm writes them: gpu-[01-03,07],login1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

_RANGE = re.compile(r"^(?P<stem>[^\[\]]*)\[(?P<ranges>[\d,-]+)\](?P<rest>.*)$")
_SPAN = re.compile(r"(?P<low>\d{1,9})(?:-(?P<high>\d{1,9}))?")
_MAX_HOSTS = 20_000


def expand_hosts(text: str) -> list[str]:
    """Names of a Slurm node list: gpu-[01-03,07],login1. At most _MAX_HOSTS: a few digits can be millions."""
    return list(islice(_hosts_in(text), _MAX_HOSTS))


def numbers_in(text: str) -> list[int]:
    """Of a list like 0-3,8: 0, 1, 2, 3, 8. At most _MAX_HOSTS."""
    spans = filter(None, map(_SPAN.fullmatch, text.split(",")))
    numbers = (n for s in spans for n in range(int(s["low"]), int(s["high"] or s["low"]) + 1))
    return list(islice(numbers, _MAX_HOSTS))


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
