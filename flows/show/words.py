"""How numbers, times and text out of logs are written for people. ASCII only, no styles."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path

_LOG_PREFIX = re.compile(r"^[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [^\]]{1,200}\] ")
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]+"
)

ACTION_WORDS = {
    "restart_same_nodes": "restart on the same nodes",
    "restart_exclude_node": "restart without the faulty node",
    "rollback_skip_data": "go back and skip the data",
    "resubmit_later": "submit again later",
    "fix_by_user": "a person has to fix it",
    "none": "nothing",
}


_ANOMALY_WORDS = {
    "loss_spike": "loss spike",
    "nonfinite": "not a finite number",
    "straggler": "straggler",
    "replica_mismatch": "replicas differ",
}


def anomaly(kind: str) -> str:
    """An anomaly's kind for people."""
    return _ANOMALY_WORDS.get(kind, kind)


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def duration(seconds: float) -> str:
    """`8 s`, `1m 23s`, `2h 05m`, `3d 04h`; below ten seconds one decimal."""
    if not math.isfinite(seconds):
        return "?"
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02d}h"


def age(seconds: float) -> str:
    """A duration in whole seconds, for what changes while one looks at it."""
    return f"{max(int(seconds), 0)} s" if seconds < 60 else duration(seconds)


def step_time(seconds: float) -> str:
    """`0.412 s`, `12.3 s`: three significant digits."""
    return f"{seconds:.3g} s"


def size(size_bytes: int) -> str:
    """`43.1 MB`: decimal units."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    units = ("kB", "MB", "GB", "TB", "PB")
    power = next((i for i in range(1, len(units)) if size_bytes < 999.5 * 1000**i), len(units))
    value = size_bytes / 1000**power
    return f"{value:.{0 if value >= 99.95 else 1}f} {units[power - 1]}"


def compact(number: float) -> str:
    """`870`, `12.3k`, `1.24M`, `2.10B`: three significant digits."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit * 0.9995:
            scaled = number / limit
            decimals = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{decimals}f}{unit}"
    return f"{number:.0f}"


def loss(value: float | None) -> str:
    """A loss with four decimals; `-` when there is none yet."""
    return "-" if value is None else f"{value:.4f}"


def percent(part: float, whole: float) -> str:
    """`81.2 %`."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else "-"


def clock(unix_time: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_time))


def quote(text: str, limit: int) -> str:
    """A log line for people: clean, without the logger's prefix (`E1201 03:34:46.8 30592 x.py:7]`)."""
    return clean(_LOG_PREFIX.sub("", clean(text, 10_000)), limit)


def clean(text: str, limit: int = 300) -> str:
    """One printable line: text out of a log may hold control characters that move the cursor."""
    line = " ".join(_ESCAPE_SEQUENCE.sub(" ", text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def printable(text: str) -> str:
    """The text without what moves the cursor or hides; its lines stay lines."""
    return "\n".join(_ESCAPE_SEQUENCE.sub(" ", line) for line in text.split("\n"))


def without_password(uri: str) -> str:
    """`postgresql://user:***@host/db`: a tracking URI may hold one."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", uri)


def short_path(path: Path | str) -> str:
    """Relative to the working directory where that is shorter."""
    absolute = str(path)
    relative = os.path.relpath(absolute)
    return relative if len(relative) < len(absolute) else absolute
