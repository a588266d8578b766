"""One pass over log lines: everything that a verdict can rest on, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from tasks.diagnose.classify import finding_of
from tasks.diagnose.exceptions import Raised, TracebackReader
from tasks.diagnose.findings import Finding, Role
from tasks.diagnose.handled import HandledErrors, says_handled, says_passing
from tasks.diagnose.json_lines import parts_of
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.progress import Progress
from tasks.diagnose.rules import RuleSet
from tasks.diagnose.timeline import Timeline
from tasks.diagnose.topology import Topology
from tasks.diagnose.torchrun import TorchrunReader
from tasks.diagnose.waiting import Collectives

_MAX_FINDINGS_PER_SOURCE = 8
_STEPS_AFTER_SURVIVED = 3
"""Steps reported after an error, for it to have been survived: ranks train in lockstep."""
_BUFFERED_REPORTS = 60
_LINES_AFTER_SURVIVED = 40
"""Ordinary lines of a rank's own stream after its error, for the same: a dying process says much."""
_LONG_AFTER_S = 30.0
"""By clocks of different nodes, which may differ by less."""
_LINES_OF_ANNOUNCEMENT = 2
_WORDS_OF_ITS_OWN_CHARS = 20
_NOTICES = ("slurm_time_limit", "slurm_preempted")
"""Of an end that is near: training goes on until the signal."""
_NOTICE_S = 600.0
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

Stream = tuple[str, int | None]


@dataclass
class StreamState:
    """What is known of one rank's lines in one file."""

    reader: TracebackReader = field(default_factory=TracebackReader)
    handled: HandledErrors = field(default_factory=HandledErrors)
    steps: int = 0
    lines: int = 0
    """Ordinary ones: outside of tracebacks, and nobody's finding."""


@dataclass
class Scan:
    """What the logs hold. Feed it every line, then read it."""

    rules: RuleSet
    handled_errors: list[str] = field(default_factory=list)
    """Texts of errors that training is known to have gone on after."""
    progress: Progress = field(default_factory=Progress)
    topology: Topology = field(default_factory=Topology)
    torchrun: TorchrunReader = field(default_factory=TorchrunReader)
    collectives: Collectives = field(default_factory=Collectives)
    timeline: Timeline = field(default_factory=Timeline)
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
    failed_exit_seen: tuple[LogLine, int] | None = None
    """And the number of steps seen before it."""
    streams: dict[Stream, StreamState] = field(default_factory=dict)
    found: dict[Stream, dict[str, list[Finding]]] = field(default_factory=dict)
    """Findings by stream and method."""
    _recent: dict[str, deque[LogLine]] = field(default_factory=dict)

    def read(self, lines: Iterable[LogLine]) -> Scan:
        """Feed all lines."""
        for line in lines:
            self.feed(line)
        return self

    def feed(self, line: LogLine) -> None:
        """Take note of one line; of a traceback that a logger has put into one, each of its lines."""
        for part in parts_of(line):
            self._feed(part)

    def __getstate__(self) -> dict[str, object]:
        """For another process, which has the rules itself."""
        return {name: value for name, value in vars(self).items() if name != "rules"}

    def skip_lines(self, count: int, file: str, rank: int) -> None:
        """Take note of ordinary lines of a rank that nobody looked at."""
        self.streams.setdefault((file, rank), StreamState()).lines += count

    def skip_steps(self, count: int, last: LogLine) -> None:
        """Take note of reports of steps that nothing else stands between; `last` is the last of them."""
        self.order += count
        stream = self.streams.setdefault((last.file, last.rank), StreamState())
        stream.steps += count // max(1, len(self.ranks)) if last.rank in self.ranks else count
        self.progress.skip(count, last)

    def _feed(self, line: LogLine) -> None:
        self.order += 1
        if line.rank is not None:
            self.ranks.add(line.rank)
        key = (line.file, line.rank)
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = StreamState()
        if line.file not in self._recent:
            self._recent[line.file] = deque(maxlen=_RECENT_LINES)
        self._recent[line.file].append(line)
        step = self.progress.feed(line)
        if step is not None:
            stream.steps += 1
            self.timeline.note_step(line, step)
        self.topology.feed(line)
        raised = stream.reader.feed(line)
        if raised is not None:
            self._note_exception(raised, key, stream)
            stream.handled.ended()
        elif stream.reader.inside:
            stream.handled.inside(line)
        else:
            if ("xit" in line.body or "task" in line.body or "ChildF" in line.body) and (
                _FAILED_EXIT.search(line.body)
            ):
                self.failed_exit_seen = (line, self.progress.steps_seen)
            if not self.torchrun.feed(line):
                self._note_line(line, key, stream)

    @property
    def findings(self) -> list[Finding]:
        """All findings that were kept, in the order in which they came."""
        return self.timeline.in_order(f for key in self.found for f in self._of_stream(key))

    def _of_stream(self, key: Stream) -> Iterator[Finding]:
        return chain.from_iterable(self.found.get(key, {}).values())

    def _drop(self, key: Stream, unwanted: Callable[[Finding], bool]) -> None:
        for findings in self.found.get(key, {}).values():
            findings[:] = [f for f in findings if not unwanted(f)]

    def _set_aside(self, finding: Finding) -> None:
        self.asides.append(finding)
        del self.asides[:-_MAX_FINDINGS_PER_SOURCE]

    def fatal(self, role: Role) -> list[Finding]:
        """Findings of a role that were not survived, in order; effects that name a node first."""
        found = [f for f in self.findings if f.role == role and not self.survived(f)]
        if role == "effect":
            return sorted(found, key=lambda f: f.node is None)
        return found

    def survived(self, finding: Finding) -> bool:
        """Whether training went on afterwards, or the error was dealt with."""
        stream = self.streams[(finding.line.file, finding.line.rank)]
        after = self._reports_after(finding)
        if finding.method in _NOTICES and self._within_notice(finding):
            return False
        if after >= _STEPS_AFTER_SURVIVED or self._before_the_end(finding):
            return True
        own_stream = finding.line.rank is not None and finding.role == "cause"
        return own_stream and stream.lines - finding.lines_before >= _LINES_AFTER_SURVIVED

    def _within_notice(self, finding: Finding) -> bool:
        """Whether all that was trained after it was within the time that is given for leaving."""
        last = self.progress.last_report_at()
        if last is None or finding.time is None:
            return self._reports_after(finding) <= _BUFFERED_REPORTS
        return last - finding.time < _NOTICE_S

    def _reports_after(self, finding: Finding) -> int:
        """Steps or losses that were reported after it, by its own stream or by the first to do so."""
        stream = self.streams[(finding.line.file, finding.line.rank)]
        own = stream.steps - finding.steps_before
        if self.progress.reports_in(finding.line.file):
            return max(own, self.progress.reports - finding.reports_before)
        return max(own, _STEPS_AFTER_SURVIVED) if self._outlived(finding) else own

    def _outlived(self, finding: Finding) -> bool:
        """Whether another file's losses go on long after it. Only times tell: files are read one by one."""
        last = self.progress.time_of_report(_STEPS_AFTER_SURVIVED)
        if last is None or finding.time is None:
            return False
        file, reported_at = last
        ahead_s = self.timeline.skew_s(finding.line.file) - self.timeline.skew_s(file)
        return reported_at - (finding.time - ahead_s) > _LONG_AFTER_S

    def just_before_the_end(self, finding: Finding) -> bool:
        """Whether all reports after it may have been in a buffer that was written as the program ended."""
        return self._reports_after(finding) <= _BUFFERED_REPORTS

    def _before_the_end(self, finding: Finding) -> bool:
        """Whether training has come to its end after it. Of ranks in files of their own, none is last."""
        end = self.progress.completed
        if end is None:
            return False
        return end.file != finding.line.file or finding.order < self.progress.ended_at

    def failed_exit(self) -> LogLine | None:
        """Where a launcher reports a failure that training did not get over; None when none does."""
        if self.failed_exit_seen is None:
            return None
        line, steps = self.failed_exit_seen
        over = self.progress.steps_seen - steps >= _STEPS_AFTER_SURVIVED
        return None if over else line

    def _note_line(self, line: LogLine, key: Stream, stream: StreamState) -> None:
        if stream.handled.recovered(line):
            self._withdraw(stream.handled.last, key)
        finding = self.rules.match(line, self.order)
        if line.body.startswith(_CRASH):
            self.crashes.setdefault(line.rank, line)
        if finding is not None:
            self.collectives.feed(line)
            handled = says_handled if finding.role == "cause" else says_passing
            if handled(line.body) or self._is_known(line):
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
        if finding is not None:
            self.collectives.feed(finding.line)
        self._forget(raised, key)
        if finding is None or self._is_known(raised.line):
            return
        left_over = self.progress.completed is not None and stream.handled.in_helper_thread
        handled = stream.handled.said_before or raised.beside_the_point or left_over
        if not raised.in_traceback:
            said = says_handled(finding.line.body) or stream.handled.ignored
            handled = finding.role == "cause" and said
        if handled:
            self._set_aside(finding)
            return
        stream.handled.last = finding
        if raised.in_traceback:
            self._forget_announcements(raised, key)
        self._keep(finding, key)

    def _is_known(self, line: LogLine) -> bool:
        """Whether training is on record to have gone on after this error."""
        body = line.body.strip()
        return any(body in error or error in body for error in self.handled_errors)

    def _forget(self, raised: Raised, key: Stream) -> None:
        """Drop what was noted for exceptions that a longer chain now explains."""
        lines = {link.line for link in raised.above()}
        self._drop(key, lambda finding: finding.line in lines)

    def _forget_announcements(self, raised: Raised, key: Stream) -> None:
        """Drop what lines just before the traceback said in the same words."""
        links = [raised, *raised.above()]
        begun_at = links[-1].begun_at
        words = [link.message for link in links if len(link.message) >= _WORDS_OF_ITS_OWN_CHARS]

        def announces(finding: Finding) -> bool:
            line = finding.line
            return (
                begun_at - _LINES_OF_ANNOUNCEMENT <= line.number < begun_at
                and any(said in line.body for said in words)
                and not line.body.startswith(raised.type_name)
            )

        self._drop(key, announces)

    def _withdraw(self, finding: Finding | None, key: Stream) -> None:
        """The next line says that the error was dealt with."""
        if finding is None:
            return
        self.withdrawn += [f for f in self._of_stream(key) if f.line is finding.line]
        del self.withdrawn[:-_MAX_FINDINGS_PER_SOURCE]
        self._drop(key, lambda other: other.line is finding.line)
        self._set_aside(finding)

    def _keep(self, finding: Finding, key: Stream) -> None:
        stream = self.streams[key]
        finding = replace(
            finding,
            steps_before=stream.steps,
            reports_before=self.progress.reports,
            lines_before=stream.lines,
            time=self.timeline.time_of_last(self._recent[key[0]]),
        )
        found = self.found.setdefault(key, {}).setdefault(finding.method, [])
        if len(found) == _MAX_FINDINGS_PER_SOURCE and self.survived(found[0]):
            found.pop(0)
        if len(found) < _MAX_FINDINGS_PER_SOURCE:
            found.append(finding)
