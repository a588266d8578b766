"""What a collector of logs says of a job that still ran: when it looked, and how old the last output was."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.times import time_of

_RUNNING = compile_pattern(
    r"(?i:state[=: ]+(?:RUNNING|R)\b)|\bRUNNING\b|\d (?:R|RUNNING) +\d[\d:-]*:\d\d\b|"
    r"(?i:\b(?:captured|collected|snapshot|taken)\b.*\b(?:phase|status)[=: ]+(?:RUNNING|R)\b)"
)
"""As Slurm, Kubernetes and those who ask them write it; squeue's line has the time used behind it."""
_LAST = compile_pattern(
    r"(?i)last[_ ](?:output|write|line)[=: ]+(?P<last>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)"
)
_AGE = compile_pattern(
    r"(?i)(?:\b|_)(?:last|latest|newest|no|new|log|output)(?:[ _].{0,40}?[ _]|[ _])?"
    r"(?:output|line|write|written|log|mtime|entry|message|update|modified|activity)\b.{0,20}?[ =:]"
    r"(?P<age>\d{1,9}(?:\.\d{1,3})?) ?(?P<unit>s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)\b"
)
_OF_OTHER_THINGS = compile_pattern(r"(?i)\b(?:checkpoint|every|each|interval)\b")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True)
class Capture:
    """A collector's line. It says when it looked, how long the output had stopped, or both."""

    taken: float | None
    """Seconds since the epoch."""
    last_output: float | None
    """Likewise."""
    silence_s: float | None


def capture_in(text: str) -> Capture | None:
    """The capture that a line tells of; None for all other lines, among them such as tell no time at all."""
    if ("R" not in text and "r" not in text) or _RUNNING.search(text) is None:
        return None
    taken = time_of(text)
    age = None if _OF_OTHER_THINGS.search(text) else _AGE.search(text)
    silence_s = float(age["age"]) * _UNITS_S[age["unit"][0].casefold()] if age else None
    if taken is None and silence_s is None:
        return None
    match = _LAST.search(text)
    last = time_of(match["last"]) if match is not None else None
    if last is None and taken is not None and silence_s is not None:
        last = taken - silence_s
    return Capture(taken, last, silence_s)
