"""Ordinary output of training: steps, losses, ends, and how a still-running job was captured.

A run can fail with no error line at all: its loss jumps, or its output just stops. And an error
that training went on after was survived: it ended nothing.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import median

from tasks.diagnose.blocks import without_middle
from tasks.diagnose.captures import capture_in, is_of_a_look, last_output_in, looked_at
from tasks.diagnose.logs import LogLine, make_line
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.rank_steps import StepsByRank
from tasks.diagnose.reports import COULD_BE_LOSS, COULD_BE_STEP, loss_of, step_in
from tasks.diagnose.sources import Source
from tasks.diagnose.times import time_of, year_of

_SUCCEEDED = compile_pattern(
    r"(?i)\bJob '?\S+ succeeded\b|(?:exit(?:s|ed)?|finished)(?: with)?(?: (?:return|exit|status))? ?[ _]?(?:code|status):? ?(?:= ?)?0\b|"
    r"(?i:\bmain(?:\(\))? returned 0\b|\bcompleted: \d+/\d+ pods succeeded|\bNormal +Completed\b)|"
    r"^\+ exit 0$|state[=: ]+COMPLETED|exit=0\b|\brc=0\b|return ?code ?(?:=|is) ?0\b"
)
_NO_SUCCESS = compile_pattern(
    r"\b(?:CANCELLED|PREEMPTED|NODE_FAIL|OUT_OF_MEMORY)\b|(?i:\b(?:aborted|killed) (?:by |\()signal)|"
    r"(?i:\b[1-9]\d* (?:of \d+ )?(?:processes|tasks|ranks|workers|pods) (?:were |have )?(?:aborted|killed|failed|crashed))"
)
"""Of one that names an exit code of 0 beside another end: of an other process, or of who wrote the line."""
_FAILED = compile_pattern(
    r"(?i)state[=: ]+(?:FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEM|PREEMPTED)|exit=[1-9]|"
    r"(?:exit|return)(?:s|ed)?(?: with)?(?: (?:return|exit))?[ _]?(?:code|status):? ?(?:= ?)?-?[1-9]"
)
_OF_AN_OUTCOME = ("exit", "code", "state", "status", "succeeded", "rc=", "returned", "completed")
"""In lower case: a line with none of them tells of neither."""
_OF_A_COLLECTIVE = compile_pattern(
    r"(?i)\b(?:seq(?:uence)?(?:[ _](?:id|num\w*))?|collective|all_?reduce|all_?gather|reduce_?scatter|last entry)\b"
)
"""Its state is none of the job."""
_COMPLETED = compile_pattern(
    r"(?i)\btraining (?:is |has |was )?(?:complete[d]?|finished|done|ended)\b|"
    r"\b(?:finished|completed|done) training\b|train_runtime|"
    r"`?trainer\.fit`? stopped: `?max_\w+=|\[after training is done\]|"
    r"exiting program at iteration|reached (?:the )?(?:max|maximum|final|target)[ _](?:steps|iter(?:ation)?s|epochs|tokens)|"
    r"\bjob (?:\S+ )?(?:finished|completed|done)(?: successfully|$)"
)
_COULD_COMPLETE = ("train", "Train", "TRAIN", "reached", "Reached", "exiting program", "ob ")
_ACTIVE = compile_pattern(
    r"(?i)sav(?:e|ing)\b|evaluat|validat|compil|loading|loaded|downloading|tokeniz|warm ?up|preparing"
)
SILENCE_S = 1200.0
"""A running job without output for longer hangs."""
_SILENT_STEPS = 20
"""So does one whose steps are slow, after this many times its usual interval."""
_TAIL_LINES = 30
_MAX_LOSSES = 8192
_SUMMARY = "wandb:"
"""It repeats the last numbers when the process ends."""
_MIN_REPORTERS = 3
_MIN_HISTORY = 16
_MIN_SPIKE = 5
_SPIKE_RATIO = 1.5
_USUAL_REPORTS = 64
"""Losses before a jump that tell what is usual."""


@dataclass
class Progress:
    """What one pass over the lines collects."""

    _losses: deque[tuple[LogLine, float] | tuple[bytes, int, Source]] = field(
        default_factory=lambda: deque(maxlen=_MAX_LOSSES)
    )
    tails: dict[str, deque[LogLine]] = field(default_factory=dict)
    _loss_stream: tuple[str, int | None] | None = None
    by_rank: StepsByRank = field(default_factory=StepsByRank)
    _steps: deque[LogLine] = field(default_factory=lambda: deque(maxlen=_MIN_HISTORY))
    reports: int = 0
    """Losses that the first rank to report one has reported."""
    completed: LogLine | None = None
    """The line that says that training has come to its end."""
    ended_at: int = 0
    """Lines read until then, over all files."""
    steps_seen: int = 0
    steps_in: Counter[str] = field(default_factory=Counter)
    """By file: the steps seen in it."""
    _steps_since_end: int = 0
    lines_seen: int = 0

    def feed(self, line: LogLine) -> int | None:
        """Take note of the line; the step that it reports, or -1 for one without a number."""
        self.lines_seen += 1
        tail = self.tails.get(line.file)
        if tail is None:
            tail = self.tails[line.file] = deque(maxlen=_TAIL_LINES)
        tail.append(line)
        body = line.body
        if any(word in body for word in _COULD_COMPLETE) and _COMPLETED.search(body):
            self.completed, self.ended_at, self._steps_since_end = line, self.lines_seen, 0
        lower = body.lower()
        if lower.lstrip().startswith(_SUMMARY):
            return None
        number = step_in(body) if any(word in lower for word in COULD_BE_STEP) else None
        if number is not None:
            self.by_rank.feed(line, number)
        if any(word in lower for word in COULD_BE_LOSS) and (loss := loss_of(line)) is not None:
            self._note_loss(line, loss)
            number = -1 if number is None else number
        if number is not None:
            self.steps_in[line.file] += 1
            self._go_on(1)
            self._steps.append(line)
        return number

    def note_report(self, line: LogLine) -> None:
        """The rank and step of a report, which is counted elsewhere."""
        if (step := step_in(line.body)) is not None:
            self.by_rank.feed(line, step)

    def _go_on(self, steps: int) -> None:
        self.steps_seen += steps
        self._steps_since_end += steps
        if self._steps_since_end >= _MIN_REPORTERS:
            self.completed, self.ended_at = None, 0  # of an epoch, or an earlier run

    def merge(self, other: Progress) -> None:
        """Go on as if the other's files had been read here, behind the own."""
        if not self.reports and other.reports:
            self._losses, self._loss_stream = other._losses, other._loss_stream
            self.reports = other.reports
        if other._steps_since_end < other.steps_seen or other.completed is not None:
            ended_at = other.ended_at + self.lines_seen
            self.completed, self.ended_at = other.completed, ended_at
            self.steps_seen += other.steps_seen
            self._steps_since_end = other._steps_since_end
        else:
            self._go_on(other.steps_seen)
        self.lines_seen += other.lines_seen
        self.steps_in.update(other.steps_in)
        self._steps.extend(other._steps)
        self.tails.update(other.tails)
        self.by_rank.merge(other.by_rank)

    def skip(self, count: int, last: LogLine) -> None:
        """Reports of steps that were not looked at; the last of them is."""
        ranks = max(1, len(self.by_rank.last))
        self.feed(last)
        self.lines_seen += count - 1
        self.steps_in[last.file] += count - 1
        self._go_on(count - 1)
        if self._loss_stream is not None and self._loss_stream[0] == last.file:
            self.reports += (count - 1) // (ranks if self._loss_stream[1] is not None else 1)

    def wants_losses(self, line: LogLine) -> bool:
        """Whether losses in the file of this line are those that are followed, or may be from now on."""
        if self._loss_stream is None:
            return loss_of(line) is not None
        return self._loss_stream[0] == line.file

    def keep_raw(self, piece: bytes, number: int, source: Source) -> None:
        """A report that is looked at only when nothing else explains the job's end."""
        self._losses.append((without_middle(piece), number, source))

    def _note_loss(self, line: LogLine, value: float) -> None:
        stream = (line.file, line.rank)
        self._loss_stream = self._loss_stream or stream
        if stream != self._loss_stream:
            return
        self.reports += 1
        self._losses.append((line, value))

    def reports_in(self, file: str) -> bool:
        """Whether the losses that are followed stand in the file."""
        return self._loss_stream is not None and self._loss_stream[0] == file

    def time_of_report(self, from_end: int) -> tuple[str, float] | None:
        """File and time of one of the last losses: 1 is the last."""
        if len(self._losses) < from_end:
            return None
        entry = self._losses[-from_end]
        line = entry[0] if len(entry) == 2 else make_line(*entry)
        seen = None if line is None else time_of(line.text)
        return None if line is None or seen is None else (line.file, seen)

    def success(self) -> LogLine | None:
        """The line that says that the job ended well, near the end of a log."""
        tails = (line for tail in self.tails.values() for line in tail)
        lines = [line for line in tails if _may_tell_outcome(line.text.lower())]
        lines = [line for line in lines if _OF_A_COLLECTIVE.search(line.text) is None]
        if any(_FAILED.search(line.text) for line in lines):
            return None
        return next((line for line in reversed(lines) if _says_success(line.text)), None)

    def capture(self) -> tuple[LogLine, float] | None:
        """A capture of the still-running job: its line, and the silence before it in seconds.

        Monitors go on writing beside a job that does nothing: training's own lines count.
        """
        for tail in self.tails.values():
            for line in reversed(tail):
                seen = capture_in(line.text) or looked_at(line.text, (o.text for o in tail))
                if seen is None:
                    continue
                if seen.taken is None:
                    return None if seen.silence_s is None else (line, seen.silence_s)
                active = self._last_activity(tail, line, year_of(seen.taken))
                last = seen.last_output or last_output_in(o.text for o in tail)
                if last is None and line is tail[-1]:
                    last = active
                if last is None:
                    return None
                return line, seen.taken - min(last, active or last)
        return None

    def silent_end(self) -> tuple[LogLine, float] | None:
        """The last line of a log that others went on to write long after training had done its last
        thing, and that silence in seconds."""
        for tail in self.tails.values():
            last = tail[-1]
            until, active = time_of(last.text), self._last_activity(tail, last)
            if self.silence_before(last) is None or until is None or active is None:
                continue
            # One line after long may be the job's own last word.
            since = [
                t for t in (time_of(line.text) for line in tail) if t is not None and t > active
            ]
            if (silence_s := until - active) > 2 * SILENCE_S and len(since) >= _MIN_REPORTERS:
                return last, silence_s
        return None

    def _last_activity(
        self, tail: deque[LogLine], until: LogLine, year: int | None = None
    ) -> float | None:
        """Time of the last line by training itself."""
        signs = [line for line in tail if line is not until and _ACTIVE.search(line.body)]
        times = [time_of(line.text, year) for line in (*signs, *self._steps)]
        return max((seen for seen in times if seen is not None), default=None)

    def last_report_at(self) -> float | None:
        """Time of the last step's report, if it tells."""
        return time_of(self._steps[-1].text) if self._steps else None

    def silence_before(self, line: LogLine) -> float | None:
        """Seconds from the last step's report until a line, when that is far longer than a step."""
        times = [t for t in (time_of(step.text) for step in self._steps) if t is not None]
        until = time_of(line.text)
        gaps = [after - before for before, after in pairwise(times)]
        if until is None or len(gaps) < _MIN_REPORTERS:
            return None
        silence_s = until - times[-1]
        long_s = max(2 * SILENCE_S, _SILENT_STEPS * max(gaps))
        return silence_s if silence_s > long_s else None

    def loss_spike(self) -> LogLine | None:
        """Where the loss jumped, or became no number, and stayed so to the end."""
        losses = self._parsed_losses()
        values = [value for _, value in losses]
        lost = len(values) - next(
            (i for i, v in enumerate(reversed(values)) if math.isfinite(v)), len(values)
        )
        if _MIN_REPORTERS < lost <= len(values) - _MIN_REPORTERS:
            return losses[lost][0]
        lowest = _lowest_from(values)
        for index in range(_MIN_HISTORY, len(values) - _MIN_SPIKE + 1):
            recent = values[max(0, index - _USUAL_REPORTS) : index]
            before = [v for v in recent if math.isfinite(v)]
            if before and lowest[index] > _SPIKE_RATIO * max(median(before), 0.0):
                return losses[index][0]
        return None

    def _parsed_losses(self) -> list[tuple[LogLine, float]]:
        parsed = []
        for entry in self._losses:
            if len(entry) == 2:
                parsed.append(entry)
                continue
            line = make_line(*entry)
            if line is None or (line.file, line.rank) != self._loss_stream:
                continue
            if (value := loss_of(line)) is not None:
                parsed.append((line, value))
        return parsed


def is_ending(body: str) -> bool:
    """Whether the line may speak of the job's end, or of what it does beside steps."""
    return any(p.search(body) for p in (_SUCCEEDED, _FAILED, _COMPLETED)) or (
        capture_in(body) is not None or is_of_a_look(body)
    )


def _says_success(text: str) -> bool:
    return _SUCCEEDED.search(text) is not None and _NO_SUCCESS.search(text) is None


def _may_tell_outcome(lower: str) -> bool:
    return any(word in lower for word in _OF_AN_OUTCOME)


def _lowest_from(values: Sequence[float]) -> list[float]:
    """The lowest of each value and those behind it; what is no finite number counts as high."""
    finite = (value if math.isfinite(value) else math.inf for value in reversed(values))
    return list(accumulate(finite, min))[::-1]
