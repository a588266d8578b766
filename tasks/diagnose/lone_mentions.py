"""The one host that a log speaks of anywhere, as `node gpu-07` or `node-agent gpu-07:`.

Where nothing else places a fault that sits in a node, that is the node. Several make it none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.host_names import is_a_device, may_name_host, short_name
from tasks.diagnose.patterns import compile_pattern

_WORDS = ("node", "host", "machine", "instance", "agent", "exporter")
"""In lower case: a line with none of them tells nothing."""
_MENTION = compile_pattern(
    r"(?i)(?:\b(?P<of>[\w-]+)[ _-])?\b(?:(?:node|host|machine|instance)(?:_?name)?[ =:/\"']{1,3}|[\w-]*(?:agent|exporter) )"
    r"(?P<host>[A-Za-z][\w.-]{1,80}\w)"
)
_OTHER_HOSTS = """
login head master main storage nfs remote peer rendezvous rdzv batch bastion jump submit admin tracking
registry rank0 local data
"""
_OTHERS = frozenset(_OTHER_HOSTS.split())
"""What such a host is beside the one that fails."""
_SEVERAL = 2


@dataclass
class LoneMentions:
    """Feed it lines; it holds the first names that were told."""

    hosts: set[str] = field(default_factory=set)

    def feed(self, text: str) -> None:
        """Take note of one line."""
        if len(self.hosts) < _SEVERAL and (host := mentioned_host(text)) is not None:
            self.hosts.add(host)

    def merge(self, other: LoneMentions) -> None:
        """Add what other files tell."""
        self.hosts |= set(sorted(other.hosts)[: _SEVERAL - len(self.hosts)])

    def only(self, known: set[str]) -> str | None:
        """The host, if it is the only one of which anything is `known`."""
        others = {short_name(name) for name in known} - {short_name(host) for host in self.hosts}
        return next(iter(self.hosts)) if len(self.hosts) == 1 and not others else None


def mentioned_host(text: str) -> str | None:
    """The host that the line speaks of by that word."""
    lower = text.lower()
    if not any(word in lower for word in _WORDS):
        return None
    match = _MENTION.search(text)
    if match is None or (match["of"] or "").lower() in _OTHERS:
        return None
    host = str(match["host"])
    return host if may_name_host(host) and not is_a_device(host) else None
