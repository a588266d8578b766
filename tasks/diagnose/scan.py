"""One pass over log lines: everything that a verdict can rest on, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tasks.diagnose.absence import IdleHosts, RollCall
from tasks.diagnose.accounting import Accounting
from tasks.diagnose.classify import finding_in, finding_of
from tasks.diagnose.collectives import Collectives, names_missing
from tasks.diagnose.findings import Finding, Role
from tasks.diagnose.handled import (
    says_dealt_with,
    says_handled,
    says_nothing_wrong,
    sets_itself_aside,
)
from tasks.diagnose.json_lines import parts_of
from tasks.diagnose.kept_findings import KeptFindings
from tasks.diagnose.logs import LogLine, is_shortened
from tasks.diagnose.notes import notes_on_files, notes_on_room
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.progress import Progress
from tasks.diagnose.raised import Raised
from tasks.diagnose.rules import RuleSet
from tasks.diagnose.survival import Stream, StreamState, Survival
from tasks.diagnose.timeline import Timeline
from tasks.diagnose.topology import Topology
from tasks.diagnose.torchrun import TorchrunReader
from tasks.diagnose.watchers import Watchers

_MAX_STREAMS = 32_768
MAX_ASIDES = 8
_PARTING = compile_pattern(r"^\s*(?:wandb:|\|)|NCCL INFO")
"""What libraries print as a process ends: summaries, tables, aborted communicators."""
_RECENT_LINES = 24
_SUSPICIOUS = compile_pattern(
    r"(?i)\b(?:fatal|critical|error|panic|abort(?:ed|ing)?|failed \(exitcode|giving up)\b"
)
_COUNTED = compile_pattern(r"(?i)\berror[ _]rate\b|\b(?:errors?|fatal)[=:] ?0\b")
_FAILED_EXIT = compile_pattern(
    r"failed \(exitcode: -?[1-9]|Exited with exit code [1-9]|ChildFailedError|exits with return code = -?[1-9]|"
    r"tasks? [\d,-]+: (?:Killed|Segmentation fault|Aborted|Bus error)"
)
_CRASH = "Fatal Python error: "


@dataclass
class Scan:
    """What the logs hold. Feed it every line, then read it."""

    rules: RuleSet
    handled_errors: list[str] = field(default_factory=list)
    """Texts of errors that training is known to have gone on after."""
    max_streams: int = _MAX_STREAMS
    """Ranks that are told apart, over all files; one for each file beyond that."""
    progress: Progress = field(default_factory=Progress)
    topology: Topology = field(default_factory=Topology)
    torchrun: TorchrunReader = field(default_factory=TorchrunReader)
    collectives: Collectives = field(default_factory=Collectives)
    timeline: Timeline = field(default_factory=Timeline)
    roll_call: RollCall = field(default_factory=RollCall)
    idle_hosts: IdleHosts = field(default_factory=IdleHosts)
    watchers: Watchers = field(default_factory=Watchers)
    accounting: Accounting = field(default_factory=Accounting)
    suspicious: LogLine | None = None
    """First line that speaks of an error and is otherwise unknown."""
    crashes: dict[int | None, LogLine] = field(default_factory=dict)
    """By rank: where Python's fault handler begins to tell of a crash in native code."""
    ranks: set[int] = field(default_factory=set)
    """Ranks that have written anything."""
    asides: list[Finding] = field(default_factory=list)
    """Errors that their program says it has dealt with."""
    withdrawn: list[Finding] = field(default_factory=list)
    """Of those, the ones of tracebacks, by the words behind them."""
    order: int = 0
    streams: dict[Stream, StreamState] = field(default_factory=dict)
    _recent: dict[str, deque[LogLine]] = field(default_factory=dict)
    crowded_lines: int = 0
    """Lines of ranks that found no room."""
    lines_read: int = 0
    """As `wc -l` counts them, and a last one without newline; looked at or not."""
    shortened: LogLine | None = None
    """First line that was too long to be read whole."""
    cut_off: list[str] = field(default_factory=list)
    """Packed files that end in the middle."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files of several that could not be read, or not to their end, and why."""
    survival: Survival = field(init=False)
    kept: KeptFindings = field(init=False)

    def __post_init__(self) -> None:
        self.survival = Survival(self.streams, self.progress, self.timeline)
        self.kept = KeptFindings(self.survival)

    def read(self, lines: Iterable[LogLine]) -> Scan:
        """Feed all lines."""
        for line in lines:
            self.feed(line)
        return self

    def feed(self, line: LogLine, *, of_hosts: bool = True, is_ordinary: bool = False) -> None:
        """Take note of a line, or each in a logged traceback; `of_hosts`: it may tell where ranks are;
        `is_ordinary`: it is known to be of no use to watchers."""
        for part in parts_of(line):
            self._feed(part, of_hosts, is_ordinary)

    def __getstate__(self) -> dict[str, object]:
        """For another process, which has the rules itself."""
        return {name: value for name, value in vars(self).items() if name != "rules"}

    def settle(self) -> None:
        """All lines are in: conclude where everything was."""
        for failure in self.torchrun.failures.values():
            if failure.rank is not None and failure.host is not None:
                self.topology.note_failed_rank(failure.rank, failure.host)
        self.topology.settle()

    def skip_lines(self, count: int, file: str, rank: int) -> None:
        """Take note of ordinary lines of a rank that nobody looked at."""
        self.streams.setdefault((file, rank), StreamState()).lines += count  # the file's own rank

    def note_report(self, line: LogLine) -> None:
        """Take note of who reports a step that is counted among those that nobody looked at."""
        line, _ = self._stream_of(line)
        if line.rank is not None:
            self.ranks.add(line.rank)
        self.progress.note_report(line)
        self.topology.feed(line)

    def skip_steps(self, count: int, last: LogLine) -> None:
        """Take note of reports of steps that nothing else stands between; `last` is the last of them."""
        self.order += count
        last, stream = self._stream_of(last)
        stream.steps += count // max(1, len(self.ranks)) if last.rank in self.ranks else count
        self.progress.skip(count, last)

    def _feed(self, line: LogLine, of_hosts: bool, is_ordinary: bool) -> None:
        self.order += 1
        if self.shortened is None and is_shortened(line.text):
            self.shortened = line
        line, stream = self._stream_of(line)
        key = (line.file, line.rank)
        if line.rank is not None:
            self.ranks.add(line.rank)
        if line.file not in self._recent:
            self._recent[line.file] = deque(maxlen=_RECENT_LINES)
        self._recent[line.file].append(line)
        step = self.progress.feed(line)
        if step is not None:
            stream.steps += 1
            self.timeline.note_step(line, step)
            self._note_life(line)
        if of_hosts:
            self.topology.feed(line)
        self.roll_call.feed(line)
        steps = self.progress.steps_in[line.file]
        self.idle_hosts.feed(line, steps)
        if is_ordinary:
            self.watchers.pass_by(line)
        else:
            self.watchers.feed(line, steps)
        if is_failed_exit(line):
            self.survival.note_failed_exit(line)
        raised = stream.reader.feed(line)
        if not stream.reader.inside and (step is None or self.survival.restarts.awaits(line)):
            self.survival.restarts.feed(line)
        if step is None and not stream.reader.inside:
            self.accounting.feed(line, self.order)
        if raised is not None:
            self._note_exception(raised, key, stream)
            stream.handled.ended()
        elif stream.reader.inside:
            stream.handled.inside(line)
        elif not self.torchrun.feed(line):
            self._note_line(line, key, stream)

    def _stream_of(self, line: LogLine) -> tuple[LogLine, StreamState]:
        """The stream of a line. Of one rank too many, the line without its rank, as one of its file's."""
        stream = self.streams.get((line.file, line.rank))
        if stream is not None:
            return line, stream
        full = len(self.streams) >= self.max_streams and line.file in self._recent
        if full and line.rank is not None:
            self.crowded_lines += 1
            line = replace(line, rank=None)
        return line, self.streams.setdefault((line.file, line.rank), StreamState())

    @property
    def notes(self) -> list[str]:
        """What was not seen as it should be, for the report."""
        return [
            *notes_on_files(self.cut_off, self.unreadable),
            *notes_on_room(
                self.max_streams, self.crowded_lines, len(self.kept), self.kept.left_out
            ),
        ]

    @property
    def findings(self) -> list[Finding]:
        """All findings that were kept, in the order in which they came."""
        return self.timeline.in_order(self.kept)

    def _set_aside(self, finding: Finding) -> None:
        self.asides.append(finding)
        del self.asides[:-MAX_ASIDES]

    def fatal(self, role: Role) -> list[Finding]:
        """Findings of a role that were not survived, in order; effects that name a node first."""
        found = [f for f in self.findings if f.role == role and not self.survived(f)]
        if role == "effect":
            return sorted(found, key=lambda f: f.node is None)
        return found

    def survived(self, finding: Finding) -> bool:
        """Whether training went on afterwards, or the error was dealt with."""
        return self.survival.survived(finding)

    def _note_line(self, line: LogLine, key: Stream, stream: StreamState) -> None:
        if stream.handled.recovered(line):
            self._withdraw(stream.handled.last, key)
        finding = finding_in(line, self.rules, self.order)
        if finding is not None and finding.role == "decisive" and says_nothing_wrong(line.body):
            finding = None
        if finding is not None and finding.node is None:
            finding = replace(finding, node=self.topology.pods.node_of_listing)
        if finding is None and names_missing(line.body):
            self.collectives.feed(line)
        if line.body.startswith(_CRASH):
            self.crashes.setdefault(line.rank, line)
        if finding is not None:
            self.collectives.feed(line)
            said = says_dealt_with(finding)
            if said:
                stream.handled.note(line)
            if said or self._is_known(line) or stream.handled.is_about_the_same(line):
                self._set_aside(finding)
            else:
                self._keep(finding, key)
        elif _SUSPICIOUS.search(line.body) and _COUNTED.search(line.body) is None:
            if self.suspicious is None and not says_handled(line.body):
                self.suspicious = line
        elif _PARTING.search(line.body) is None:
            stream.lines += 1
        stream.handled.outside(line)

    def _note_exception(self, raised: Raised, key: Stream, stream: StreamState) -> None:
        """Keep what a chain's first exception says, unless its program has dealt with it."""
        finding = finding_of(raised, self.rules, self.order)
        steps = self.progress.steps_in[key[0]]
        finding = self.watchers.missing.behind(raised, finding, steps)
        if finding is not None:
            self.collectives.feed(finding.line)
        self._forget(raised, key)
        if finding is None or self._is_known(raised.line):
            return
        late = self.progress.completed is not None or raised.of_a_dying_process
        left_over = late and stream.handled.in_helper_thread
        handled = stream.handled.said_before or raised.beside_the_point or left_over
        handled = handled or sets_itself_aside(raised.message)
        if not raised.in_traceback:
            said = says_handled(finding.line.body) or stream.handled.ignored or left_over
            handled = finding.role == "cause" and said
        if handled:
            self._set_aside(finding)
            return
        stream.handled.last = finding
        if raised.in_traceback:
            self.kept.drop(key, lambda other: raised.announced_by(other.line))
        self._keep(finding, key)

    def _is_known(self, line: LogLine) -> bool:
        """Whether training is on record to have gone on after this error."""
        body = line.body.strip()
        return any(body in error or error in body for error in self.handled_errors)

    def _forget(self, raised: Raised, key: Stream) -> None:
        """Drop what was noted for exceptions that a longer chain now explains."""
        lines = {link.line for link in raised.above()}
        self.kept.drop(key, lambda finding: finding.line in lines)

    def _withdraw(self, finding: Finding | None, key: Stream) -> None:
        """The next line says that the error was dealt with."""
        if finding is None:
            return
        self.withdrawn += [f for f in self.kept.of_stream(key) if f.line is finding.line]
        del self.withdrawn[:-MAX_ASIDES]
        self.kept.drop(key, lambda other: other.line is finding.line)
        self._set_aside(finding)

    def _note_life(self, line: LogLine, finding: Finding | None = None) -> None:
        """A step or trouble: if it comes of a later start, what torchrun said of earlier ones is past."""
        if self.survival.restarts.goes_on(line, finding):
            self.torchrun.forget(self.survival.restarts.is_past)

    def _keep(self, finding: Finding, key: Stream) -> None:
        stream, node = self.streams[key], finding.node
        if node is None and finding.role != "effect":
            node = self.watchers.ray_tasks.address_of(finding.line)
        self._note_life(finding.line, finding)
        self.survival.restarts.note_end(finding.line, finding)
        finding = replace(
            finding,
            node=node,
            steps_before=stream.steps,
            reports_before=self.progress.reports,
            lines_before=stream.lines,
            time=self.timeline.time_of_last(self._recent[key[0]]),
        )
        self.kept.add(key, finding)


def is_failed_exit(line: LogLine) -> bool:
    """Whether a launcher reports a failure."""
    may = "xit" in line.body or "task" in line.body or "ChildF" in line.body
    return may and _FAILED_EXIT.search(line.body) is not None
