"""Durations, sizes, bandwidths and counts as people write them: `14.3h`, `1.7TB`, `20GB/s`, `123B`."""

from __future__ import annotations

import math
import re

from configs.errors import InputError

_DURATION_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZE_PREFIXES = {"": 1.0} | {letter: 1000.0 ** (i + 1) for i, letter in enumerate("kmgtp")}
_COUNT_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_NUMBER = r"(-?\d[\d_]*\.?\d*(?:e[+-]?\d+)?)\s*"


def parse_duration_s(text: str) -> float:
    """Seconds of `90s`, `15min` (or `15m`), `14.3h`, `239d`."""
    match = re.fullmatch(_NUMBER + r"(s|m|min|h|d)", text.strip(), re.IGNORECASE)
    if match is None:
        raise InputError(f"{text!r} is no duration: write a number and s, min, h or d, like 14.3h")
    return _positive(text, _number(match[1]) * _DURATION_UNITS_S[match[2].lower()])


def parse_size_bytes(text: str) -> float:
    """Bytes of `1.7TB`, `512GiB`, or a plain number."""
    match = re.fullmatch(_NUMBER + r"([kmgtp]?)(i?)b?", text.strip(), re.IGNORECASE)
    if match is None:
        raise InputError(f"{text!r} is no size: write a number and its unit, like 1.7TB or 512GiB")
    return _positive(text, _number(match[1]) * _scale(match[2], binary=bool(match[3])))


def parse_bandwidth_bytes_per_s(text: str) -> float:
    """Bytes per second of `20GB/s` or `200Gbit/s`; `Gb/s` could be either and is refused."""
    match = re.fullmatch(_NUMBER + r"([kKmMgGtT]?)(i?)(B|bit)/s", text.strip())
    if match is None:
        raise InputError(
            f"{text!r} is no bandwidth: write a number and B/s or bit/s, like 20GB/s or 200Gbit/s"
        )
    value = _number(match[1]) * _scale(match[2], binary=bool(match[3]))
    return _positive(text, value / (8 if match[4] == "bit" else 1))


def parse_count(text: str) -> float:
    """The number of `123B`, `7b`, `350M`, `10k`, `1_000`."""
    match = re.fullmatch(_NUMBER + r"([kmbgt]?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise InputError(f"{text!r} is no number: write one like 350M, 7B or 123B")
    return _positive(text, _number(match[1]) * _COUNT_UNITS[match[2].lower()])


def _number(digits: str) -> float:
    return float(digits)


def _scale(prefix: str, *, binary: bool) -> float:
    scale = _SIZE_PREFIXES[prefix.lower()]
    return 1024.0 ** (round(math.log10(scale)) // 3) if binary else scale


def _positive(text: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{text!r} must be more than zero, and finite")
    return value
