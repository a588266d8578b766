"""Stacks that somebody has taken of a hanging job's processes: which one does something else than all others.

As py-spy prints them, a frame on each line or all in one, and as Python's fault handler does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tasks.diagnose.host_names import host_tokens, label_of
from tasks.diagnose.logs import MAX_RANKS, LogLine
from tasks.diagnose.patterns import compile_pattern

_FUNCTION = r"[A-Za-z_<][\w.<>:]*"
_PLACE = r"\([\w./<>+-]*\.(?:pyx?|so[\w.]*|c|cc|cpp|cu)(?::\d+)?\)"
_CALL = compile_pattern(rf"({_FUNCTION}) {_PLACE}")
_FRAME = compile_pattern(
    rf"(?:^|[:|\]])\s*(?P<function>{_FUNCTION}|0x[0-9a-f]+) {_PLACE}\s*$|"
    r"^\s+File \"[^\"]+\", line \d+ in (?P<name>\S+)\s*$"
)
_RANK = compile_pattern(r"(?i)(?:^|[^a-z])rank[\"' =:#_]{0,3}(?P<rank>\d{1,6})\b")
_PROCESS = compile_pattern(r"(?i)\b(?:pid|process|thread)[ =:#]{1,2}(?P<pid>\d{2,9})\b")
_THREAD = compile_pattern(r"\"(?P<thread>[\w-]+)\"")
_WAITS = compile_pattern(
    r"(?i)^(?:wait\w*|synchroni[sz]e|barrier|all_?reduce\w*|all_?gather\w*|reduce_scatter\w*|broadcast\w*|all_to_all\w*)$"
)
_FRAME_WORDS = (".py", ".so", ".c:", ".cc:", ".cpp:", ".cu:", ".c)", ".cc)", ".cpp)", ".cu)")
_MAX_PROCESSES = 20_000
_MAX_FRAMES = 64
_MIN_PROCESSES = 3
_LINES_OF_A_HEAD = 6
_MOST = 0.75
"""Share of all processes that must be at the same place, for another place to mean something."""

Who = tuple[int | None, str | None, int | None]
"""Rank, host and process, as far as they are told."""


@dataclass
class DumpedStacks:
    """Feed it lines; it holds where each process was when it was last looked at."""

    places: dict[Who, tuple[str, ...]] = field(default_factory=dict)
    """Functions, the innermost first."""
    seen: tuple[str, int] = ("", 0)
    """The file of the last frame, and the steps that it had reported before."""
    _heads: list[LogLine] = field(default_factory=list)
    _who: Who | None = None
    """Whose frames are being read."""

    def feed(self, line: LogLine, steps: int = 0) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        text = line.body
        if not any(word in text for word in _FRAME_WORDS):
            self.note_head(line)
            return
        calls = _CALL.findall(text) if text.count("(") > 1 else []
        if len(calls) > 1:
            self.seen = (line.file, steps)
            self._note_whole(line, text, calls)
        elif (match := _FRAME.search(text)) is not None:
            self._who = self._who if line.file == self.seen[0] else None
            self.seen = (line.file, steps)
            self._note_frame(line, match["function"] or match["name"])
        else:
            self.note_head(line)

    def note_head(self, line: LogLine) -> None:
        """Take note of a line that is no frame, and may say whose frames come next."""
        if self._who is not None:
            self._heads, self._who = [], None
        self._heads = [*self._heads[1 - _LINES_OF_A_HEAD :], line]

    def _note_whole(self, line: LogLine, text: str, calls: list[str]) -> None:
        """All frames of a process in one line."""
        head = text[: text.index(calls[0])]
        who = _who([head], line)
        if who is not None and (who in self.places or len(self.places) < _MAX_PROCESSES):
            self.places[who] = tuple(calls[:_MAX_FRAMES])

    def _note_frame(self, line: LogLine, function: str) -> None:
        if self._who is None:
            heads = [head.text for head in self._heads if head.file == line.file]
            who = _who(heads, line)
            thread = next((m["thread"] for h in heads[::-1] if (m := _THREAD.search(h))), None)
            if who is None or thread not in (None, "MainThread"):
                return
            if who not in self.places and len(self.places) >= _MAX_PROCESSES:
                return
            self._who, self.places[who] = who, ()
        if len(self.places[self._who]) < _MAX_FRAMES:
            self.places[self._who] += (function,)

    def merge(self, other: DumpedStacks) -> None:
        """Add what later files tell."""
        self.seen = other.seen if other.places else self.seen
        for who, place in other.places.items():
            if who in self.places or len(self.places) < _MAX_PROCESSES:
                self.places[who] = place

    def odd_one(self) -> tuple[int | None, str | None] | None:
        """Rank and host of the only process that is elsewhere than nearly all others, or the host of several."""
        if len(self.places) < _MIN_PROCESSES:
            return None
        usual, count = Counter(self.places.values()).most_common(1)[0]
        odd = {who for who, place in self.places.items() if place != usual}
        if count < _MOST * len(self.places):
            odd = {who for who, place in self.places.items() if not _waits(place)}
            if len(odd) > (1 - _MOST) * len(self.places):
                return None
        hosts = {host for _, host, _ in odd}
        if len(odd) == 1:
            return next(iter(odd))[:2]
        return (None, hosts.pop()) if len(hosts) == 1 else None


def tells_stack(body: str) -> bool:
    """Whether the line is a frame of a stack, or a whole one."""
    return any(word in body for word in _FRAME_WORDS) and (
        _FRAME.search(body) is not None or len(_CALL.findall(body)) > 1
    )


def _waits(place: tuple[str, ...]) -> bool:
    return any(_WAITS.search(name.rpartition(".")[2]) for name in place)


def _who(heads: list[str], line: LogLine) -> Who | None:
    """Whose stack it is, by the lines above it and the frame's own labels; None where nothing tells."""
    rank, host, pid = line.rank, label_of(line.text), None
    for head in heads[::-1]:
        if rank is None and (match := _RANK.search(head)) is not None:
            rank = int(match["rank"]) if int(match["rank"]) < MAX_RANKS else None
        if pid is None and (match := _PROCESS.search(head)) is not None:
            pid = int(match["pid"])
        if host is None:
            host = next(iter(host_tokens(head)), None)
    return None if rank is None and pid is None and host is None else (rank, host, pid)
