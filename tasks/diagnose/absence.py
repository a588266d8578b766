"""Who is missing where nothing is said: a rank that did not report for duty, a host whose GPUs stand idle.

Of the others in a hang, some wait in the collective, which keeps a GPU fully busy, so it is the idle
host that does not come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.host_names import host_tokens
from tasks.diagnose.logs import MAX_RANKS
from tasks.diagnose.patterns import compile_pattern

_PRESENT = compile_pattern(
    r"(?:GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER: \d{1,6}/(?P<size>\d{1,6})|"
    r"(?i:\brank)[ =:]{1,2}(?P<own>\d{1,6}) ?(?:/|of) ?(?P<of>\d{1,6})\b)"
)
_UTILIZATION = compile_pattern(
    r"(?i)^(?P<before>.{0,200}?)\b(?:gpu[_ ]?)?util\w*[ =:]{1,2}(?P<busy>\d{1,3}%?(?:[, ]+\d{1,3}%?)*)"
)
_MAX_HOSTS = 20_000
_MIN_HOSTS = 3
_BUSY = 50
"""Per cent; a GPU that waits in a collective shows nearly 100."""


def tells_presence(body: str) -> bool:
    """Whether the line says that a rank is there, or how busy a host is."""
    return _PRESENT.search(body) is not None or _UTILIZATION.search(body) is not None


@dataclass
class RollCall:
    """Ranks that have said that they are there, of how many."""

    present: set[int] = field(default_factory=set)
    size: int = 0

    def feed(self, text: str) -> None:
        """Take note of one line, without a launcher's label."""
        if "ank" not in text and "RANK" not in text:
            return
        match = _PRESENT.search(text)
        if match is None:
            return
        rank, size = int(match["rank"] or match["own"]), int(match["size"] or match["of"])
        if rank < size <= MAX_RANKS and (not self.size or size == self.size):
            self.size = size
            self.present.add(rank)

    def merge(self, other: RollCall) -> None:
        """Add those who have answered elsewhere."""
        self.size = self.size or other.size
        if other.size == self.size:
            self.present |= other.present

    def missing(self) -> set[int]:
        """The ranks that are missing, when they are few."""
        gone = self.size - len(self.present)
        if not 0 < 4 * gone <= self.size:
            return set()
        return set(range(self.size)) - self.present


@dataclass
class IdleHosts:
    """How busy each host's GPUs were when it was last told."""

    busy: dict[str, int] = field(default_factory=dict)
    """Per cent of the busiest GPU, by host."""

    def feed(self, text: str) -> None:
        """Take note of one line."""
        if "util" not in text or (match := _UTILIZATION.search(text)) is None:
            return
        hosts = host_tokens(match["before"])
        if len(hosts) == 1 and (hosts[0] in self.busy or len(self.busy) < _MAX_HOSTS):
            figures = match["busy"].replace("%", "").replace(",", " ").split()
            self.busy[hosts[0]] = max(map(int, figures))

    def only_idle(self) -> str | None:
        """The one host that does nothing while all others are busy."""
        idle = [host for host, busy in self.busy.items() if busy == 0]
        others = [busy for busy in self.busy.values() if busy != 0]
        all_busy = len(self.busy) >= _MIN_HOSTS and min(others, default=0) >= _BUSY
        return idle[0] if len(idle) == 1 and all_busy else None
