"""Which errors training went on after: those ended nothing, whatever they say."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.exceptions import TracebackReader
from tasks.diagnose.findings import Finding
from tasks.diagnose.handled import HandledErrors
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.progress import Progress
from tasks.diagnose.restarts import Restarts
from tasks.diagnose.timeline import Timeline
from tasks.diagnose.times import time_of

STEPS_AFTER = 3
"""Steps reported after an error, for it to have been survived: ranks train in lockstep."""
_LINES_AFTER = 40
"""Ordinary lines of a rank's own stream after its error, for the same: a dying process says much."""
_LONG_AFTER_S = 30.0
"""By clocks of different nodes, which may differ by less."""
_BUFFERED_REPORTS = 60
NOTICES = ("slurm_time_limit", "slurm_preempted")
"""Of an end that is near: training goes on until the signal."""
_NOTICE_S = 600.0
_TASK_FAILED = compile_pattern(
    r": Exited with exit code |"
    r"tasks? [\d,-]+: (?:Segmentation fault|Bus error|Floating point exception|Illegal instruction|Aborted)"
)
"""No cancel ends a task so: that sends SIGTERM and SIGKILL."""

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
class Survival:
    """Judges errors by what came after them. Holds the scan's own objects, which go on changing."""

    streams: dict[Stream, StreamState]
    progress: Progress
    timeline: Timeline
    failed_exits: dict[str, tuple[LogLine, int]] = field(default_factory=dict)
    """By file: where a launcher last reports a failure, and the number of steps in the file before it."""

    restarts: Restarts = field(default_factory=Restarts)
    task_failed: LogLine | None = None
    """Where Slurm first says that a task has failed by itself."""

    def merge(self, other: Survival) -> None:
        """Add what launchers say in other files."""
        self.failed_exits.update(other.failed_exits)
        self.restarts.merge(other.restarts)
        self.task_failed = self.task_failed or other.task_failed

    def survived(self, finding: Finding) -> bool:
        """Whether training went on afterwards, or the error was dealt with."""
        stream = self.streams[(finding.line.file, finding.line.rank)]
        if self.restarts.is_past(finding.line):
            return True
        after = self._reports_after(finding)
        if finding.method in NOTICES and self._within_notice(finding):
            return False
        if after >= STEPS_AFTER or self._before_the_end(finding):
            return True
        own_stream = finding.line.rank is not None and finding.role == "cause"
        return own_stream and stream.lines - finding.lines_before >= _LINES_AFTER

    def just_before_the_end(self, finding: Finding) -> bool:
        """Whether all reports after it may have been in a buffer that was written as the program ended."""
        return self._reports_after(finding) <= _BUFFERED_REPORTS

    def note_failed_exit(self, line: LogLine) -> None:
        """A launcher reports a failure; the last such line of a file counts."""
        self.failed_exits[line.file] = (line, self.progress.steps_in[line.file])
        self.restarts.note_end(line)
        if self.task_failed is None and _TASK_FAILED.search(line.text) is not None:
            self.task_failed = line

    def failed_exit(self) -> LogLine | None:
        """Where a launcher reports a failure that training did not get over; None when none does."""
        failed = (line for line, steps in self.failed_exits.values() if not self._over(line, steps))
        return next(failed, None)

    def _over(self, line: LogLine, steps: int) -> bool:
        """Whether training goes on behind a launcher's line: in its file, or by the times of another."""
        if self.progress.steps_in[line.file] - steps >= STEPS_AFTER:
            return True
        clock = self.timeline.clocks.get(line.file)
        failed_at = time_of(line.text, clock.year if clock is not None else None)
        last = self.progress.last_report_at()
        if failed_at is None or last is None:
            return False
        return last - failed_at > _LONG_AFTER_S

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
        return max(own, STEPS_AFTER) if self._outlived(finding) else own

    def _outlived(self, finding: Finding) -> bool:
        """Whether another file's losses go on long after it. Only times tell: files are read one by one."""
        last = self.progress.time_of_report(STEPS_AFTER)
        if last is None or finding.time is None:
            return False
        file, reported_at = last
        ahead_s = self.timeline.skew_s(finding.line.file) - self.timeline.skew_s(file)
        return reported_at - (finding.time - ahead_s) > _LONG_AFTER_S

    def _before_the_end(self, finding: Finding) -> bool:
        """Whether training has come to its end after it. Of ranks in files of their own, none is last."""
        end = self.progress.completed
        if end is None:
            return False
        return end.file != finding.line.file or finding.order < self.progress.ended_at
