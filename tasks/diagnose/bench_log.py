"""A log of any size for the compression benchmark: recorded lines with changing values, and causes.

Lines come in the mixture of a job with many ranks in one stream: mostly metric records, progress bars,
setup and debug output, some lines that no rule knows, a few errors that were dealt with, and, each
once at a random place, lines that can be a cause.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path

import yaml

_DIGITS = re.compile(r"\d\d:\d\d:\d\d\b|\b20\d\d[-_/]\d\d[-_/]\d\d\b|\d+")
_HEX = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{9,}\b")
_RANKS = 64
_VARIANTS = 3000
# Share of each kind of line in the body.
_MIXTURE = {
    "overland_steps": 34,
    "megatron": 14,
    "python_logging": 16,
    "transformers_bars": 3,
    "transformers_notes": 3,
    "deepspeed": 8,
    "nccl": 10,
    "overland_notes": 3,
    "chatter": 6,
    "handled": 1,
}
_PREFIXED = ("python_logging", "chatter", "handled")
"""Kinds that every rank writes, with its rank in front."""
_LOSS = re.compile(r"(?i)(loss(?:['\"])?[ :=]+['\"]?)\d+\.\d+")


def recorded_lines() -> dict[str, list[str]]:
    """Lines by kind; those of `causes` can be a cause."""
    text = files("tasks.diagnose").joinpath("bench_log.yaml").read_text(encoding="utf-8")
    lines: dict[str, list[str]] = yaml.safe_load(text)
    return lines


def write_log(path: Path, size_bytes: int, *, seed: int = 0) -> dict[int, str]:
    """Write a log of about that size; returns the causes in it by line number."""
    rng = random.Random(seed)  # noqa: S311  (the same log each time, no secret)
    kinds = recorded_lines()
    variants = {kind: _vary(kinds[kind], kind in _PREFIXED, rng) for kind in _MIXTURE}
    causes = list(kinds["causes"])
    rng.shuffle(causes)
    places = sorted(rng.uniform(0.0, 0.99) * size_bytes for _ in causes)
    found: dict[int, str] = {}
    number = written = 0
    with open(path, "w", encoding="utf-8", newline="") as file:
        for line in chain(kinds["torchrun_start"], _body(variants, rng)):
            while places and written >= places[0]:
                places.pop(0)
                number += 1
                found[number] = causes.pop()
                file.write(found[number] + "\n")
            if written >= size_bytes:
                return found
            file.write(line + "\n")
            number += 1
            written += len(line) + 1
    return found


def _body(variants: Mapping[str, Sequence[str]], rng: random.Random) -> Iterator[str]:
    """Routine lines without end."""
    names, weights = list(_MIXTURE), list(_MIXTURE.values())
    while True:
        for kind in rng.choices(names, weights, k=1000):
            yield rng.choice(variants[kind])


def _vary(lines: list[str], prefixed: bool, rng: random.Random) -> list[str]:
    found = [_renew(rng.choice(lines), rng) for _ in range(_VARIANTS)]
    if prefixed:
        found = [f"[rank{rng.randrange(_RANKS)}]: {line}" for line in found]
    return found


def _renew(line: str, rng: random.Random) -> str:
    """The line with other values of the same form; a loss stays where losses are."""

    def digits(match: re.Match[str]) -> str:
        width = len(match[0])
        if ":" in match[0]:
            return f"{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
        if not match[0].isdigit():
            return match[0]
        return str(rng.randrange(10 ** (width - 1), 10**width)) if width > 1 else match[0]

    def loss(match: re.Match[str]) -> str:
        return f"{match[1]}{rng.uniform(2.2, 2.6):.4f}"

    line = _HEX.sub(lambda match: f"{rng.getrandbits(4 * len(match[0])):0{len(match[0])}x}", line)
    return _LOSS.sub(loss, _DIGITS.sub(digits, line))


def sample_lines(path: Path, count: int) -> list[str]:
    """About `count` lines of the file, in ten runs that are spread evenly."""
    size = path.stat().st_size
    runs, found = 10, []
    with open(path, "rb") as file:
        for run in range(runs):
            file.seek(size * run // runs)
            file.readline()
            found += [file.readline() for _ in range(count // runs)]
    return [line.decode("utf-8", errors="replace").rstrip("\n") for line in found if line]
