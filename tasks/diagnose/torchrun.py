"""What torchrun says about its workers: who died first, of what, and whom it ended itself.

torchrun's own words are the only trace of a rank that died without a word. It ends the other ranks
with a signal as soon as one dies; those deaths are its doing and no failure of theirs.

Each node has an agent of its own, which speaks of its own workers alone. Containers number their processes
alike, so a worker is known by who tells of it (the file, and the label of its lines) and its process id.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import Match, PatternSet, compile_pattern

_CLOSING = compile_pattern(r"Sending process (\d+) closing signal")
_FORCED = compile_pattern(r"Unable to shutdown process (\d+) via")
_TOLD = compile_pattern(r"Received (?:Signals\.)?(?:\d+|SIG\w+) death signal")
_FAILED = compile_pattern(r"failed \(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)")
_ROOT_CAUSE = compile_pattern(r"Root Cause \(first observed failure\)")
_OTHERS = compile_pattern(r"^(?:Other )?Failures:")
_FIELD = compile_pattern(
    r"^\s*(?:host\s*: (?P<host>\S+)|rank\s*: (?P<rank>\d*)(?: \(local_rank: (?P<local>\d+)\))?|"
    r"exitcode\s*: (?P<code>-?\d+)\b(?: \(pid: (?P<pid>\d+)\))?)"
)
_RESTART = compile_pattern(
    r"will restart worker group|Rendezvous complete for workers.*restart_count=[1-9]"
)
_WORDS = (
    " : ",
    " process ",
    "death signal",
    "failed (",
    "ailures:",
    "Root Cause",
    "host",
    "exitcode",
    "worker group",
    "restart_count",
)
_MAX_WORKERS = 20_000
"""Whose end is noted: one for each GPU of the largest jobs."""
Agent = tuple[str, int | None]
"""File and label of its lines."""
Worker = tuple[Agent, int]
"""By its agent and its process id."""
_ANY = PatternSet([_CLOSING, _FORCED, _TOLD, _FAILED, _ROOT_CAUSE, _OTHERS, _FIELD, _RESTART])


@dataclass(frozen=True)
class RankFailure:
    """One worker's end, as torchrun observed it."""

    rank: int | None
    exit_code: int
    """Negative: the number of the signal that ended it."""
    pid: int
    host: str | None
    line: LogLine
    local_rank: int | None = None
    first: bool = False
    """torchrun saw it before the others. Not always the cause: it looks only now and then."""

    @property
    def who(self) -> str:
        """For people."""
        return f"rank {self.rank}" if self.rank is not None else f"process {self.pid}"

    @property
    def signal_name(self) -> str | None:
        """Like SIGKILL; None for an exit by the program itself."""
        return signal_name(-self.exit_code) if self.exit_code < 0 else None


def signal_name(number: int) -> str:
    """Like SIGKILL; real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass
class _Table:
    """What has been read of the worker that an agent's report comes to."""

    in_root_cause: bool = False
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None


@dataclass
class TorchrunReader:
    """Collects torchrun's report, line by line."""

    failures: dict[Worker, RankFailure] = field(default_factory=dict)
    ended_by_torchrun: set[Worker] = field(default_factory=set)
    told_to_stop: LogLine | None = None
    """torchrun itself was signalled."""
    _tables: dict[Agent, _Table] = field(default_factory=dict)

    def merge(self, other: TorchrunReader) -> None:
        """Add the reports in other files."""
        self.failures.update(other.failures)
        self.ended_by_torchrun |= other.ended_by_torchrun
        self.told_to_stop = self.told_to_stop or other.told_to_stop

    def global_rank(self, local_rank: int) -> int | None:
        """Of the only failed worker with that local rank, if its report names both."""
        found = {f.rank for f in self.failures.values() if f.local_rank == local_rank}
        return found.pop() if len(found) == 1 else None

    def failure_of(self, pid: int) -> RankFailure | None:
        """Of the only failed worker with that process id."""
        found = [failure for failure in self.failures.values() if failure.pid == pid]
        return found[0] if len(found) == 1 else None

    def feed(self, line: LogLine) -> bool:
        """Take note of the line; whether it was torchrun's."""
        text = line.body
        if not any(word in text for word in _WORDS) or _ANY.first(text) is None:
            return False
        if _RESTART.search(text):
            self.forget(lambda told: _agent(told) == _agent(line))  # the next workers are others
        elif match := _CLOSING.search(text) or _FORCED.search(text):
            if len(self.ended_by_torchrun) < _MAX_WORKERS:
                self.ended_by_torchrun.add((_agent(line), int(match[1])))
        elif _TOLD.search(text):
            self.told_to_stop = self.told_to_stop or line
        elif match := _FAILED.search(text):
            self._add(RankFailure(None, int(match[1]), int(match[2]), None, line, first=True))
        elif _ROOT_CAUSE.search(text) or _OTHERS.search(text):
            self._table_of(line).in_root_cause = "Root Cause" in text
        elif match := _FIELD.match(text):
            self._note_field(match, line)
        return True

    def forget(self, is_past: Callable[[LogLine], bool]) -> None:
        """Drop what was reported of workers of earlier starts of the job."""
        self.failures = {w: f for w, f in self.failures.items() if not is_past(f.line)}
        if self.told_to_stop is not None and is_past(self.told_to_stop):
            self.told_to_stop = None

    def own_deaths(self) -> list[RankFailure]:
        """Workers that torchrun did not end itself, the one it saw first in front."""
        own = [f for w, f in self.failures.items() if w not in self.ended_by_torchrun]
        if any(f.first and f.exit_code > 0 for f in own):
            # What is told to end after another has failed by itself is ended for that.
            own = [f for f in own if f.signal_name != "SIGTERM"]
        return sorted(own, key=lambda f: (not f.first, f.line.number))

    def _table_of(self, line: LogLine) -> _Table:
        if len(self._tables) >= _MAX_WORKERS:
            self._tables.clear()
        return self._tables.setdefault(_agent(line), _Table())

    def _note_field(self, match: Match, line: LogLine) -> None:
        table = self._table_of(line)
        if match["host"] is not None:
            table.host = match["host"]
        elif match["code"] is None:
            table.rank = int(match["rank"]) if match["rank"] else None
            table.local_rank = int(match["local"]) if match["local"] else None
        elif match["pid"] is not None:
            code, pid = int(match["code"]), int(match["pid"])
            first, local_rank = table.in_root_cause, table.local_rank
            self._add(RankFailure(table.rank, code, pid, table.host, line, local_rank, first))

    def _add(self, failure: RankFailure) -> None:
        """The table names the global rank and host; the line before it was printed first."""
        worker = (_agent(failure.line), failure.pid)
        known = self.failures.get(worker)
        if known is not None:
            failure = replace(failure, line=known.line, first=known.first or failure.first)
        if known is not None or len(self.failures) < _MAX_WORKERS:
            self.failures[worker] = failure


def _agent(line: LogLine) -> Agent:
    return line.file, line.rank
