"""Error counters that moved between two listings of a host: before the job and after it, or one and the next.

A listing begins with a line that names its host alone; lines below it may say which device is next. What
counts is not how high a counter is, for errors of years ago stay in it, but that it has risen.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from tasks.diagnose.host_names import MAX_HOSTS, only_host_in
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_HEAD = compile_pattern(
    r"^\W{2,}[^:]{0,60}$|^\W{2,}.{0,30}\b(?:before|after|start|end|pre|post)\b|^\[?[\w.-]+\]?:?$"
)
_DEVICE = compile_pattern(
    r"(?i)^\s*(?:GPU|port|link|device|nic|hca|card|ifname|interface)\W{0,2}[\w./-]{1,24}\b"
)
_COUNT = compile_pattern(
    r"(?i)^(?P<key>.{0,80}\b\w*(?:errors?|replays?|recover\w*|crc|discards?|uncorr\w*|dbe|sbe|retir\w*|remap\w*|symbol\w*|"
    r"link_?down\w*|flaps?|carrier\w*|retrans\w*|drops?|dropped|timeouts?)\w*[^:=\d]{0,40})[:=]\s*(?P<value>\d{1,18})\s*$"
)
_COUNTED = r"(?:error|replay|recover|crc|discard|uncorr|dbe|retir|symbol|down|flap|carrier|retrans|drop|timeout)[a-z_]{0,40}"
_FIELDS = re.compile(rf"\b([a-z_]{{0,40}}{_COUNTED})[=:] ?(\d{{1,18}})\b", re.IGNORECASE)
_HAS_FIELDS = compile_pattern(rf"(?i){_COUNTED}[=:] ?\d")
_MAX_COUNTERS = 100_000
_DEVICE_CHARS = 16
_FAR_MORE = 10
_MAX_HEAD_CHARS = 120


@dataclass
class _Place:
    """Where in a file the last line stood."""

    host: str | None = None
    device: str = ""


@dataclass
class MovedCounters:
    """Feed it lines; it knows whose counters have risen."""

    risen: Counter[str] = field(default_factory=Counter)
    """By host: by how much, over all its counters."""
    _listings: Counter[str] = field(default_factory=Counter)
    _values: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Those that are not 0."""
    _first: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """The same, after the first listing of each host."""
    _places: dict[str, _Place] = field(default_factory=dict)

    def feed(self, line: LogLine) -> None:
        """Take note of one line."""
        if line.rank is not None:
            return
        text = line.body
        if ("=" in text or ":" in text) and len(fields := _fields_in(text)) > 1:
            self._note_fields(text, fields)
            return
        place = self._places.setdefault(line.file, _Place())
        if (
            (":" in text or "=" in text)
            and place.host is not None
            and (match := _COUNT.match(text))
        ):
            self._note(place, match["key"].strip(), int(match["value"]))
        elif (host := _head_of(text)) is not None:
            place.host, place.device = host, ""
            self._note_listing(host)
        elif place.host is not None and (device := _device_in(text)) is not None:
            place.device = device

    def _note_fields(self, text: str, fields: list[tuple[str, str]]) -> None:
        """Of a line that has a host and all its counters."""
        host = only_host_in(text)
        if host is None:
            return
        self._note_listing(host)
        device = text[: text.index(fields[0][0])][-_DEVICE_CHARS:]
        for key, value in fields:
            self._note(_Place(host, device), key, int(value))

    def _note_listing(self, host: str) -> None:
        if host in self._listings or len(self._listings) < MAX_HOSTS:
            self._listings[host] += 1

    def _note(self, place: _Place, key: str, value: int) -> None:
        host = place.host or ""
        entry = (host, place.device, key)
        before = self._values.get(entry, 0)
        if value == before or (entry not in self._values and len(self._values) >= _MAX_COUNTERS):
            return
        self._values[entry] = value
        if self._listings[host] <= 1:
            self._first[entry] = value
        elif value > before:
            self.risen[host] += value - before

    def merge(self, other: MovedCounters) -> None:
        """Add what later files tell."""
        for entry, value in other._first.items():
            host, before = entry[0], self._values.get(entry, 0)
            if host not in self._listings:
                self._first[entry] = value
            elif value > before:
                self.risen[host] += value - before
        self._values.update(other._values)
        self.risen += other.risen
        self._listings += other._listings

    def only_host(self) -> str | None:
        """The host whose counters have risen, or have by far the most."""
        most = self.risen.most_common(2)
        alone = len(most) == 1 or (len(most) > 1 and most[0][1] > _FAR_MORE * most[1][1])
        return most[0][0] if alone and len(self._listings) > 1 else None


def _fields_in(text: str) -> list[tuple[str, str]]:
    """Names and values; most lines have none."""
    if _HAS_FIELDS.search(text) is None:
        return []
    return _FIELDS.findall(text)


def _device_in(text: str) -> str | None:
    """The device that a line begins with. A host may be called gpu-07, as NCCL's lines begin."""
    if "NCCL" in text or (found := _DEVICE.match(text)) is None:
        return None
    return str(found[0]).strip()


def tells_counters(body: str) -> bool:
    """Whether the line may be of a listing of counters."""
    if len(_fields_in(body)) > 1:
        return True
    return (
        _COUNT.match(body) is not None or _device_in(body) is not None or _head_of(body) is not None
    )


def _head_of(text: str) -> str | None:
    """The host of a line that begins a listing."""
    if len(text) > _MAX_HEAD_CHARS or _HEAD.match(text) is None:
        return None
    return only_host_in(text)
