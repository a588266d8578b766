"""What a collector of logs says of a job that still ran: when it looked, and how old the last output was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.times import time_of

_RUNNING = compile_pattern(
    r"(?i:state[=: ]+(?:RUNNING|R)\b)|\bRUNNING\b|\d (?:R|RUNNING) +\d[\d:-]*:\d\d\b|"
    r"\b\d+/\d+ +Running +\d+ |\b\d+/\d+ (?:pods?|ranks|workers|processes) (?:are )?(?i:running)\b|"
    r"(?i:\b(?:captured?|copied|collected|snapshot|taken)\b.*\b(?:phase|status)[=: ]+(?:RUNNING|R)\b)"
)
"""As Slurm, Kubernetes and those who ask them write it; squeue's line has the time used behind it."""
_LAST = compile_pattern(
    r"(?i)(?:last[_ ](?:output|write|line|entry|message|modified|update)(?: (?:written|was|seen|at|on)){0,2}|\bmtime|"
    r"\bno (?:new )?(?:output|lines?|entry|message|write) since)[=: ]+(?P<last>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)"
)
_CLOCK_SINCE = compile_pattern(
    r"(?i)(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\b.*\b(?:no (?:new )?(?:output|lines?|entry|message|write|step)|last (?:output|line|step|write))"
    r"(?: (?:written|was|seen|at))? (?:since|at) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)\b"
)
"""Both by the clock alone, within a day."""
_AGE = compile_pattern(
    r"(?i)(?:\b|_)(?:last|latest|newest|no|new|log|output)(?:[ _].{0,40}?[ _]|[ _])?"
    r"(?:output|line|write|written|log|mtime|entry|message|update|modified|activity)\b.{0,20}?[ =:]"
    r"(?P<age>\d{1,9}(?:\.\d{1,3})?) ?(?P<unit>s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)\b"
)
_OF_OTHER_THINGS = compile_pattern(r"(?i)\b(?:checkpoint|every|each|interval)\b")
_STAMP = (
    r"(?:20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d"
    r"(?: [A-Z]{3,4})? 20\d\d)"
)
_ZONE = r"(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_NOW = compile_pattern(rf"^\s*(?P<stamp>{_STAMP}){_ZONE}\s*$")
"""What `date` prints."""
_FILE = compile_pattern(
    rf"^(?:[\w-]{{10}}[.+@]? .{{0,80}} )?(?P<stamp>{_STAMP}){_ZONE} \S+\.(?:out|err|log|txt)\s*$|"
    rf"^\s*Modify: (?P<modified>{_STAMP})"
)
"""What `ls` and `stat` print of a log."""
_UTC = compile_pattern(r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|\+00:?00)\b")
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
    if silence_s is None and (since := _CLOCK_SINCE.search(text)) is not None:
        silence_s = _between_clocks(since.groupdict())
    if taken is None and silence_s is None:
        return None
    match = _LAST.search(text)
    last = time_of(match["last"]) if match is not None else None
    if last is None and taken is not None and silence_s is not None:
        last = taken - silence_s
    return Capture(taken, last, silence_s)


def _between_clocks(parts: dict[str, str | None]) -> float:
    taken, last = (
        3600 * int(parts[h] or 0) + 60 * int(parts[m] or 0) + int(parts[s] or 0)
        for h, m, s in (("hour", "minute", "second"), ("h", "m", "s"))
    )
    return float((taken - last) % 86_400)


def last_output_in(texts: Iterable[str]) -> float | None:
    """When the output stopped, as a line of its own says it."""
    told = [time_of(m["last"]) for m in (_LAST.search(t) for t in texts) if m is not None]
    return max((seen for seen in told if seen is not None), default=None)


def looked_at(row: str, beside: Iterable[str]) -> Capture | None:
    """The same by the commands of one who looks: a queue's row that tells no time, and beside it the
    clock and the time of the log. Zones are left out: all three are of one machine."""
    if "R" not in row or _RUNNING.search(row) is None:
        return None
    now = written = None
    stamped = 0
    for text in beside:
        stamped += _UTC.search(text) is not None
        if (match := _NOW.search(text)) is not None:
            now = time_of(match["stamp"])
        elif (match := _FILE.search(text)) is not None:
            written = time_of(match["stamp"] or match["modified"])
    if now is not None and written is None and stamped > 1:
        return Capture(now, None, None)  # The log's own last words are by the same clock.
    if now is None or written is None or now < written:
        return None
    return Capture(now, written, now - written)


def is_of_a_look(text: str) -> bool:
    """Whether the line may be one of those."""
    if "R" in text and _RUNNING.search(text) is not None:
        return True
    return _NOW.search(text) is not None or _FILE.search(text) is not None
