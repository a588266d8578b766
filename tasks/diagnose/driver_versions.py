"""Versions of the GPU driver on a job's hosts, where checks at its start print them: the one that differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tasks.diagnose.host_names import MAX_HOSTS, only_host_in
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_VERSION = compile_pattern(
    r"(?i)\bdriver(?:[_ ]?version)?[ :=v]{1,4}(?P<version>\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b"
)
_MIN_HOSTS = 3


@dataclass
class DriverVersions:
    """Feed it lines; it holds the version of each host."""

    of_host: dict[str, str] = field(default_factory=dict)

    def feed(self, line: LogLine) -> None:
        """Take note of one line."""
        if (found := _told_in(line)) is not None and len(self.of_host) < MAX_HOSTS:
            self.of_host[found[0]] = found[1]

    def merge(self, other: DriverVersions) -> None:
        """Add what later files tell."""
        self.of_host.update(other.of_host)

    def odd_host(self) -> str | None:
        """The one host whose version differs from that of all others."""
        versions = Counter(self.of_host.values()).most_common()
        if len(self.of_host) < _MIN_HOSTS or len(versions) != 2 or versions[1][1] != 1:
            return None
        return next(h for h, version in self.of_host.items() if version == versions[1][0])


def tells_driver(line: LogLine) -> bool:
    """Whether the line tells a host's version of the driver."""
    return _told_in(line) is not None


def _told_in(line: LogLine) -> tuple[str, str] | None:
    if "driver" not in line.text.lower() or (match := _VERSION.search(line.text)) is None:
        return None
    host = only_host_in(line.text)
    return (host, match["version"]) if host is not None else None
