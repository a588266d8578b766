"""Ordinary output of training: steps, losses, ends, and how a still-running job was captured.

A run can fail with no error line at all: its loss jumps, or its output just stops. And an error
that training went on after was survived: it ended nothing.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_STEP = compile_pattern(
    r"(?i)\b(?:step|iteration|iter|global_step)\b['\"]?\s*[=:/\[]?\s*(?P<step>\d+)"
)
_LOSS = compile_pattern(
    r"(?i)(?:^|[\s{,|'\"])(?:lm[ _])?(?:train[ _])?loss['\"]?\s*[:=]\s*"
    r"(?P<loss>[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|nan|inf))"
)
_SUCCEEDED = compile_pattern(
    r"(?i)exit(?:ed)?(?: with)?[ _](?:code|status):? ?0\b|state=COMPLETED|exit=0:0"
)
_FAILED = compile_pattern(r"(?i)state=(?:FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)")
_CAPTURED = compile_pattern(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d).*state=RUNNING.*"
    r"last_output=(?P<last>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
)
SILENCE_S = 1200.0
"""A running job without output for longer hangs."""
_TAIL_LINES = 30
_MAX_LOSSES = 4096
_MIN_REPORTERS = 3
_MIN_HISTORY = 16
_MIN_SPIKE = 5
_SPIKE_RATIO = 1.5


@dataclass
class Progress:
    """What one pass over the lines collects."""

    _losses: deque[tuple[LogLine, float]] = field(default_factory=lambda: deque(maxlen=_MAX_LOSSES))
    _tail: deque[LogLine] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    _loss_stream: tuple[str, int | None] | None = None
    _last_step: dict[int, int] = field(default_factory=dict)
    reports: int = 0
    """Losses that the first rank to report one has reported."""

    def feed(self, line: LogLine) -> bool:
        """Take note of the line; whether it reports a step."""
        self._tail.append(line)
        step = _STEP.search(line.body)
        if step is not None and line.rank is not None:
            self._last_step[line.rank] = int(step["step"])
        loss = _LOSS.search(line.body)
        if loss is None:
            return step is not None
        stream = (line.file, line.rank)
        self._loss_stream = self._loss_stream or stream
        if stream == self._loss_stream:
            self.reports += 1
            self._losses.append((line, float(loss["loss"])))
        return True

    def laggard(self) -> int | None:
        """The one rank whose last reported step is before that of all others."""
        if len(self._last_step) < _MIN_REPORTERS:
            return None
        last = max(self._last_step.values())
        behind = [rank for rank, step in self._last_step.items() if step < last]
        return behind[0] if len(behind) == 1 else None

    def success(self) -> LogLine | None:
        """The line that says that the job ended well, near the end of the log."""
        if any(_FAILED.search(line.text) for line in self._tail):
            return None
        return next((line for line in reversed(self._tail) if _SUCCEEDED.search(line.text)), None)

    def capture(self) -> tuple[LogLine, float] | None:
        """A capture of the still-running job: its line, and the silence before it in seconds."""
        for line in reversed(self._tail):
            if match := _CAPTURED.search(line.text):
                taken = datetime.fromisoformat(match["time"])
                last = datetime.fromisoformat(match["last"])
                return line, (taken - last).total_seconds()
        return None

    def loss_spike(self) -> LogLine | None:
        """Where the loss jumped, or became no number, and stayed so to the end."""
        values = [value for _, value in self._losses]
        for index in range(_MIN_HISTORY, len(values) - _MIN_SPIKE + 1):
            before = [v for v in values[max(0, index - 64) : index] if math.isfinite(v)]
            if before and all(_is_high(v, median(before)) for v in values[index:]):
                return self._losses[index][0]
        return None


def _is_high(value: float, usual: float) -> bool:
    return not math.isfinite(value) or value > _SPIKE_RATIO * max(usual, 0.0)
