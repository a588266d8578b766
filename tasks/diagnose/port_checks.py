"""What checks before the first step tell of each host's network cards: the port that is down on one host alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tasks.diagnose.host_names import only_host_in
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_PORT = compile_pattern(
    r"\b(?P<card>mlx\d_\w{1,12}|hfi\d_\d|irdma\d|bnxt_re\d|ib\d{1,2}|rdmap\w{1,12}|hsn\d)(?:[/: ]+(?:port )?\d{1,2})?\b"
    r"(?: ==> \w{1,16} \(|.{0,40}?(?i:\b(?:link|state|status))[ =:]{1,3}(?:\d[: ]{1,2})?)"
    r"(?P<state>(?i:active|up|down|disabled|polling|init\w*))\b"
)
_WORDS = ("state", "link", "status", "==>")
_UP = ("active", "up")
_MIN_UP = 2
_MAX_PORTS = 100_000


@dataclass
class PortChecks:
    """Feed it lines; it holds the hosts where each card is up, and where it is down."""

    up: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Hosts by card."""
    down: defaultdict[str, dict[str, LogLine]] = field(default_factory=lambda: defaultdict(dict))
    """By card and host."""
    _ports: int = 0

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        if steps or self._ports >= _MAX_PORTS or (found := _told_in(line)) is None:
            return
        host, card, is_up = found
        self._ports += 1
        if is_up:
            self.up[card].add(host)
        else:
            self.down[card].setdefault(host, line)

    def merge(self, other: PortChecks) -> None:
        """Add what later files tell."""
        for card, hosts in other.up.items():
            self.up[card] |= hosts
        for card, lines in other.down.items():
            self.down[card] = {**lines, **self.down[card]}

    def odd_host(self) -> tuple[str, LogLine] | None:
        """The only host that has a port down which is up on others, and the line that says so."""
        odd: dict[str, LogLine] = {}
        for card, lines in self.down.items():
            others = self.up.get(card, set()) - set(lines)
            if len(lines) == 1 and len(others) >= _MIN_UP:
                odd = {**lines, **odd}
        return next(iter(odd.items())) if len(odd) == 1 else None


def tells_port(line: LogLine) -> bool:
    """Whether the line tells the state of a host's network card."""
    return _told_in(line) is not None


def _told_in(line: LogLine) -> tuple[str, str, bool] | None:
    """Host, card, and whether it is up."""
    text, lower = line.text, line.text.lower()
    if "NCCL" in text:
        return None  # It tells the state of a connection.
    if not any(word in lower for word in _WORDS) or (match := _PORT.search(text)) is None:
        return None
    if (host := only_host_in(text)) is None:
        return None
    return host, match["card"], match["state"].lower() in _UP
