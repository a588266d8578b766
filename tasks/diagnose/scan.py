"""One pass over log lines: everything that a verdict can rest on, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tasks.diagnose.exceptions import Raised, TracebackReader, class_of
from tasks.diagnose.findings import Finding, Role
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.progress import Progress
from tasks.diagnose.rules import RuleSet
from tasks.diagnose.topology import Topology
from tasks.diagnose.torchrun import TorchrunReader

_MAX_FINDINGS_PER_SOURCE = 8
_STEPS_AFTER_SURVIVED = 3
"""Steps reported after an error, for it to have been survived: ranks train in lockstep."""
_HANDLED = compile_pattern(
    r"(?i)^(?:[^\s:]*[\s:]+){0,5}\[?(?:WARN(?:ING)?|INFO|DEBUG)\b|"
    r"\b(?:skipp(?:ed|ing)|ignor(?:ed|ing)|caught|retrying|retry \d+|falling back|"
    r"restarted|rebuilding|cache miss|will retry|retry loop|no action needed)\b"
)
"""What a line says about an error that its program has dealt with."""
_SUSPICIOUS = compile_pattern(r"(?i)\b(?:fatal|critical|error|panic|abort(?:ed|ing)?)\b")

_CRASH = "Fatal Python error: "

Stream = tuple[str, int | None]


@dataclass
class Scan:
    """What the logs hold. Feed it every line, then read it."""

    rules: RuleSet
    handled_errors: list[str] = field(default_factory=list)
    """Texts of errors that training is known to have gone on after."""
    progress: Progress = field(default_factory=Progress)
    topology: Topology = field(default_factory=Topology)
    torchrun: TorchrunReader = field(default_factory=TorchrunReader)
    suspicious: LogLine | None = None
    """First line that speaks of an error and is otherwise unknown."""
    crashes: dict[int | None, LogLine] = field(default_factory=dict)
    """By rank: where Python's fault handler begins to tell of a crash in native code."""
    ranks: set[int] = field(default_factory=set)
    """Ranks that have written anything."""
    _order: int = 0
    _readers: dict[Stream, TracebackReader] = field(default_factory=dict)
    _steps: Counter[Stream] = field(default_factory=Counter)
    _findings: dict[tuple[Stream, str], list[Finding]] = field(default_factory=dict)
    """By stream and method."""

    def read(self, lines: Iterable[LogLine]) -> Scan:
        """Feed all lines."""
        for line in lines:
            self.feed(line)
        return self

    def feed(self, line: LogLine) -> None:
        """Take note of one line."""
        self._order += 1
        if line.rank is not None:
            self.ranks.add(line.rank)
        stream = (line.file, line.rank)
        self._steps[stream] += self.progress.feed(line)
        self.topology.feed(line)
        reader = self._readers.setdefault(stream, TracebackReader())
        raised = reader.feed(line)
        if raised is not None:
            self._note_exception(raised, stream)
        elif not reader.inside and not self.torchrun.feed(line):
            self._note_line(line, stream)

    @property
    def findings(self) -> list[Finding]:
        """All findings that were kept, in order."""
        kept = (finding for source in self._findings.values() for finding in source)
        return sorted(kept, key=lambda finding: finding.order)

    def fatal(self, role: Role) -> list[Finding]:
        """Findings of a role that were not survived, in order; effects that name a node first."""
        found = [f for f in self.findings if f.role == role and not self.survived(f)]
        return sorted(found, key=lambda f: (role == "effect" and f.node is None, f.order))

    def survived(self, finding: Finding) -> bool:
        """Whether training went on afterwards, or the error was dealt with."""
        steps = self._steps[(finding.line.file, finding.line.rank)] - finding.steps_before
        reports = self.progress.reports - finding.reports_before
        return max(steps, reports) >= _STEPS_AFTER_SURVIVED

    def _note_line(self, line: LogLine, stream: Stream) -> None:
        finding = self.rules.match(line, self._order)
        if finding is not None:
            if not (_is_handled(finding) or self._is_known_handled(line)):
                self._keep(finding, stream)
        elif line.body.startswith(_CRASH):
            self.crashes.setdefault(line.rank, line)
        elif self.suspicious is None and _SUSPICIOUS.search(line.body):
            self.suspicious = line

    def _note_exception(self, raised: Raised, stream: Stream) -> None:
        """Give a chain's first exception its class, by a rule for its text or by its type."""
        root = raised.root()
        finding = self.rules.match(root.line, self._order)
        if finding is None and not root.wrapper:
            finding = Finding(
                class_of(root), "cause", "exception", root.line, self._order, rank=root.line.rank
            )
        self._forget(raised.context, stream)
        if finding is None or self._is_known_handled(raised.line):
            return
        if raised.in_traceback or not _is_handled(finding):
            self._keep(finding, stream)

    def _is_known_handled(self, line: LogLine) -> bool:
        body = line.body.strip()
        return any(body in error or error in body for error in self.handled_errors)

    def _forget(self, raised: Raised | None, stream: Stream) -> None:
        """Drop what was noted for exceptions that a longer chain now explains."""
        lines = set()
        while raised is not None:
            lines.add(raised.line)
            raised = raised.context
        for source, found in self._findings.items():
            if source[0] == stream:
                found[:] = [f for f in found if f.line not in lines]

    def _keep(self, finding: Finding, stream: Stream) -> None:
        finding = replace(
            finding, steps_before=self._steps[stream], reports_before=self.progress.reports
        )
        found = self._findings.setdefault((stream, finding.method), [])
        if len(found) == _MAX_FINDINGS_PER_SOURCE and self.survived(found[0]):
            found.pop(0)
        if len(found) < _MAX_FINDINGS_PER_SOURCE:
            found.append(finding)


def _is_handled(finding: Finding) -> bool:
    """Whether the line itself says that the error was dealt with."""
    return finding.role == "cause" and _HANDLED.search(finding.line.body) is not None
