"""Hosts that others say something is wrong with: not reached, drained, retired, without power.

Where the scheduler says that a node failed and not which, or ranks only miss a peer, these tell it. A
line counts if it names one host alone; which hosts are the job's, `topology.py` knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tasks.diagnose.host_names import address_in, host_tokens, label_of
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_TROUBLE = compile_pattern(
    r"(?i)\bno(?:t|n)?[ -]?respon(?:d|se|sive|ding)\b|\bunresponsive\b|\bun-?reachable\b|\bno route to host\b|"
    r"\bhost is down\b|\btimed out on (?:send|recv)|\blost (?:contact|communication|power)\b|"
    r"\b(?:setting|set|marked|marking|moved|state|is|went|now|put)\b.{0,80}\b(?:down|drain\w*|dead|offline|lost)\b|"
    r"\bretire(?:d|ment)\b|\bpower(?:ed)?(?: is)?[ :-]{1,4}(?:off|down|loss|lost|failure)\b|\bdown\*|\bnot ?ready\b|\brebooted\b|"
    r"\b100 ?% (?:packet )?loss\b|\bup:? \d{1,2} ?min|"
    r"\blast (?:seen|heard|contact|heartbeat|report\w*|answer\w*|ping)\b\D{0,20}"
    r"(?:(?:[6-9]\d|\d{3,})(?:\.\d+)? ?s|\d{1,4} ?(?:m|h))|\bac lost\b|"
    r"\bfail(?:ed|ing|s) \w*[ _]?check|\bhealth check .{0,20}fail|\bunhealthy\b|\bno heartbeat\b|"
    r"\b(?:did|does|do) not (?:answer|respond|reply)\b|\bno (?:answer|reply)\b|"
    r"\b(?:connection|connect|ssh|ping)\b.{0,60}\b(?:timed out|refused|failed)\b"
)
_OF_A_HOST = compile_pattern(r"(?i)\b(?:ssh|ping)\b|\b(?:host|node|agent|machine)[ =:]{1,2}\d")
"""What is reached is a machine, and no rank's port."""
_CALLED = compile_pattern(
    r"(?i)\b(?:ping|ssh|host|node|bmc|ipmi|agent|machine|server)[ =:]{1,2}(?P<host>[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*)"
)
"""A host by a name without a number, which only counts if it is one of the job's."""
_CONNECTS = compile_pattern(r"(?i)\bconnect(?:ion|ing)?\b")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
"""A cloud's name for the machine behind a node."""
_RECORD = compile_pattern(r"\bNodeName=(?P<host>[A-Za-z][\w.-]*)")
_LINES_OF_A_RECORD = 8
_PASSED = compile_pattern(
    r"(?i)\b(?:yesterday|days? ago|last (?:week|month)|other job|neighbour)\b"
)
_WORDS = [
    "respon",
    "reach",
    "route",
    "down",
    "timed",
    "lost",
    "drain",
    "dead",
    "retire",
    "power",
    "check",
    "unhealthy",
    "heartbeat",
    "answer",
    "reply",
    "ready",
    "loss",
    "reboot",
    "min",
    "last",
    "refused",
    "offline",
    "failed",
]
"""In lower case: a line with none of them is none."""
_MAX_HOSTS = 4096


@dataclass(frozen=True)
class Trouble:
    """What was said last about a host, and when."""

    line: LogLine
    steps: int
    """That its file had reported when it was said."""


@dataclass
class HostTroubles:
    """Feed it lines; it holds the first and the last trouble that is told of each host, of the last file that does."""

    first: dict[str, Trouble] = field(default_factory=dict)
    last: dict[str, Trouble] = field(default_factory=dict)
    _record: tuple[LogLine, str] | None = None
    """Where the scheduler's record of a node begins, and the node."""

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line."""
        if "NodeName=" in line.body and (match := _RECORD.search(line.body)) is not None:
            self._record = (line, match["host"])
        host = _host_in_trouble(line) or self._recorded(line)
        if host is None or (host not in self.last and len(self.last) >= _MAX_HOSTS):
            return
        told = self.last[host] = Trouble(line, steps)
        before = self.first.get(host)
        # What training went on after is no part of what is told now.
        if before is None or before.line.file != line.file or before.steps < steps:
            self.first[host] = told

    def _recorded(self, line: LogLine) -> str | None:
        """The node of the record that the line is of, if it says that it is in trouble."""
        if self._record is None or "State=" not in line.body:
            return None
        begun, host = self._record
        near = begun.file == line.file and 0 < line.number - begun.number <= _LINES_OF_A_RECORD
        return host if near and _TROUBLE.search(line.body) is not None else None

    def merge(self, other: HostTroubles) -> None:
        """Add what later files tell."""
        self.first.update(other.first)
        self.last.update(other.last)


def tells_trouble(line: LogLine) -> bool:
    """Whether the line says that something is wrong with one host, or is of a scheduler's record of one."""
    if "NodeName=" in line.body or "State=" in line.body:
        return True
    return _host_in_trouble(line) is not None


def _host_in_trouble(line: LogLine) -> str | None:
    text = line.body
    if line.rank is not None or "NCCL" in text:
        return None
    lower = text.lower()
    if not any(word in lower for word in _WORDS):
        return None
    if _TROUBLE.search(text) is None or _PASSED.search(text) is not None:
        return None
    tokens = set(host_tokens(text))
    hosts = {name for name in tokens if _INSTANCE.fullmatch(name) is None} or tokens
    if hosts == {label_of(text)} and _CONNECTS.search(text) and address_in(text) is not None:
        return None  # It is the one that connects.
    if not hosts and _OF_A_HOST.search(text) is not None:
        hosts = set() if (address := address_in(text)) is None else {address}
    if not hosts:
        hosts = {name for name in _called_in(text) if not any(c.isdigit() for c in name)}
    return hosts.pop() if len(hosts) == 1 else None


def _called_in(text: str) -> set[str]:
    found: set[str] = set()
    while (match := _CALLED.search(text)) is not None:
        found.add(str(match["host"]))
        text = text[match.end() :]
    return found
