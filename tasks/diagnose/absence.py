"""Who is missing where nothing is said: a rank that did not report for duty, a host whose GPUs stand idle.

Of the others in a hang, some wait in the collective, which keeps a GPU fully busy, so it is the idle
host that does not come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.diagnose.host_names import MAX_HOSTS, host_tokens
from tasks.diagnose.host_tables import NOT_OF_THE_JOB
from tasks.diagnose.logs import MAX_RANKS, LogLine, writer_of
from tasks.diagnose.patterns import compile_pattern

_PRESENT = compile_pattern(
    r"(?:GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER: \d{1,6}/(?P<size>\d{1,6})|"
    r"\brank (?P<joined>\d{1,6}) nranks (?P<joining>\d{1,6}) .{0,200}Init COMPLETE|"
    r"\bWORLD_SIZE=(?P<world>\d{1,6})[ ,;]+RANK=(?P<member>\d{1,6})[ ,;]+LOCAL_RANK=|"
    r"\bRANK=(?P<process>\d{1,6})[ ,;]+LOCAL_RANK=\d{1,6}[ ,;]+WORLD_SIZE=(?P<processes>\d{1,6})\b|"
    r"(?P<what>(?i:\b(?:[a-z]+[ _])?rank))[ =:]{1,2}(?P<own>\d{1,6}) ?(?:/|of) ?(?P<of>\d{1,6})\b)"
)
_UTILIZATION = compile_pattern(
    r"(?i)^(?P<before>.{0,200}?)\b(?:gpu[_ ]?)?(?:util\w*|busy)%?\"?[ =:]{1,2}[\[(]?(?P<busy>\d{1,3}%?(?:[, ]+\d{1,3}%?)*)"
)
_SHARE = compile_pattern(r"\b(?P<share>\d{1,6})/(?P<of>\d{1,6})\b")
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_SHAPE_CHARS = 80
_MAX_SHAPES = 256
_MIN_HOSTS = 3
_MIN_RANKS = 3
_LOOKS = 2
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
    shares: int = 0
    """How many ranks shared the last work that was told."""
    waves: dict[str, set[int]] = field(default_factory=dict)
    """By wording, the latest last: the ranks that have written such a line."""

    def feed(self, line: LogLine) -> None:
        """Take note of one line."""
        if (rank := writer_of(line)) is not None:
            self._note_share(line.body, rank)
            self._note_wave(_NUMBERS.sub("#", line.body)[:_SHAPE_CHARS], rank)
        self._note_present(line.body)

    def _note_share(self, text: str, rank: int) -> None:
        """How many they are, by a rank that does its share: rank 6 the 7th of 16."""
        match = _SHARE.search(text) if "/" in text else None
        if match is not None and rank + 1 == int(match["share"]) <= int(match["of"]) <= MAX_RANKS:
            self.shares = int(match["of"])

    def _note_wave(self, shape: str, rank: int) -> None:
        wave = self.waves.pop(shape, set())
        wave.add(rank)
        self.waves[shape] = wave
        if len(self.waves) > _MAX_SHAPES:
            del self.waves[next(iter(self.waves))]

    def _note_present(self, text: str) -> None:
        if "ank" not in text and "RANK" not in text:
            return
        match = _PRESENT.search(text)
        if match is None:
            return
        said = match.groupdict()
        if (said["what"] or "").lower().startswith(NOT_OF_THE_JOB):
            return
        own = ("rank", "joined", "member", "process", "own")
        of_all = ("size", "joining", "world", "processes", "of")
        rank = next(int(told) for name in own if (told := said[name]))
        size = next(int(told) for name in of_all if (told := said[name]))
        if rank < size <= MAX_RANKS and (not self.size or size == self.size):
            self.size = size
            self.present.add(rank)

    def merge(self, other: RollCall) -> None:
        """Add those who have answered elsewhere."""
        self.size = self.size or other.size
        self.shares = other.shares or self.shares
        if other.size == self.size:
            self.present |= other.present
        for shape, wave in other.waves.items():
            for rank in wave:
                self._note_wave(shape, rank)

    @property
    def total(self) -> int:
        """How many ranks there are; 0 where none says so."""
        return self.size or self.shares

    def missing(self, ranks: set[int]) -> set[int]:
        """The ranks that are missing, when they are few: of those that say how many they are, or else of
        `ranks`, from what was written last."""
        if gone := _few(set(range(self.size)), self.present):
            return gone
        last = next(reversed(self.waves.values()), set())
        ranks = ranks | set(range(self.shares))
        return _few(ranks, last) if len(last) >= _MIN_RANKS else set()


def _few(all_of_them: set[int], there: set[int]) -> set[int]:
    """Who of all is not there, when that is at most a quarter."""
    gone = all_of_them - there
    return gone if 4 * len(gone) <= len(all_of_them) else set()


@dataclass
class IdleHosts:
    """How busy each host's GPUs were when it was last told."""

    busy: dict[str, int] = field(default_factory=dict)
    """Per cent of the busiest GPU, by host."""
    rounds: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Of a host that has done nothing since: the file, and the steps reported in it, at each look."""
    _worked: set[str] = field(default_factory=set)
    """Hosts that were busy at any look."""

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        text = line.text
        lower = text.lower()
        if ("util" not in lower and "busy" not in lower) or (
            match := _UTILIZATION.search(text)
        ) is None:
            return
        if match["before"].rstrip().lower().endswith("cpu"):
            return
        hosts = host_tokens(match["before"])
        if len(hosts) == 1 and (hosts[0] in self.busy or len(self.busy) < MAX_HOSTS):
            figures = match["busy"].replace("%", "").replace(",", " ").split()
            busy = self.busy[hosts[0]] = max(map(int, figures))
            looks = self.rounds.pop(hosts[0], [])
            if busy == 0:
                self.rounds[hosts[0]] = [*looks, (line.file, steps)][-_LOOKS:]
            else:
                self._worked.add(hosts[0])

    def merge(self, other: IdleHosts) -> None:
        """Add what later files tell."""
        self.busy.update(other.busy)
        for host in other.busy:
            before = self.rounds.pop(host, [])
            if (looks := other.rounds.get(host)) is not None:
                idle_before = [] if host in other._worked else before
                self.rounds[host] = [*idle_before, *looks][-_LOOKS:]
        self._worked |= other._worked

    def only_idle(self) -> str | None:
        """The one host that does nothing while all others are busy."""
        idle = [host for host, busy in self.busy.items() if busy == 0]
        others = [busy for busy in self.busy.values() if busy != 0]
        all_busy = len(self.busy) >= _MIN_HOSTS and min(others, default=0) >= _BUSY
        return idle[0] if len(idle) == 1 and all_busy else None

    def idle_without_a_step(self, steps_in: Mapping[str, int]) -> str | None:
        """The same, if it was so at several looks and the job has reported no step since the first."""
        host = self.only_idle()
        looks = self.rounds.get(host, []) if host is not None else []
        still = all(steps_in.get(file, 0) == steps for file, steps in looks)
        return host if len(looks) >= _LOOKS and still else None
