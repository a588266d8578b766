"""When a line was written, where it says so: the stamps that training programs and systems print."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_SEARCHED_CHARS = 160
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_ZONE = r"(?: ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)\b)?"
# Python's own engine: no repeat here is open-ended, and the text is short.
_HAS_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_STAMPS = (
    re.compile(rf"(?P<year>20\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]{_CLOCK}{_ZONE}"),
    re.compile(rf"\b[IWEFCD](?P<month>[01]?\d)(?P<day>[0-3]\d) {_CLOCK}"),
    re.compile(rf"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>(?:20)?\d\d) {_CLOCK}"),
    re.compile(
        rf"(?P<name>[A-Z][a-z]{{2}}) {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK}"
        r"(?: (?P<zone>UTC|GMT))?(?: [A-Z]{3,4})?(?: (?P<year>20\d\d)\b)?"
    ),
)


@lru_cache(maxsize=256)
def time_of(text: str, year: int | None = None) -> float | None:
    """Seconds since the epoch of the first stamp in the text; UTC unless it names a zone.

    A stamp without a year (glog's, syslog's) needs `year`, and is None without.
    """
    text = text[:_SEARCHED_CHARS]
    if _HAS_CLOCK.search(text) is None:
        return None
    matches = [match for stamp in _STAMPS if (match := stamp.search(text)) is not None]
    for match in sorted(matches, key=lambda match: match.start()):
        parts = match.groupdict()
        written = parts.get("year")
        full_year = int(written) if written else year
        if full_year is None:
            continue
        try:
            return _seconds(parts, full_year if full_year > 99 else 2000 + full_year)
        except ValueError:
            continue  # digits that look like a stamp: 99:99:99
    return None


def year_of(seconds: float) -> int:
    """The year of a time, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).year


def _seconds(parts: dict[str, str | None], year: int) -> float:
    name = parts.get("name")
    month = _MONTHS.index(name) + 1 if name else int(parts["month"] or 0)
    fraction = float(f"0.{parts['fraction']}") if parts.get("fraction") else 0.0
    moment = datetime(
        year,
        month,
        int(parts["day"] or 0),
        int(parts["hour"] or 0),
        int(parts["minute"] or 0),
        int(parts["second"] or 0),
        tzinfo=UTC,
    )
    return moment.timestamp() + fraction - _offset_s(parts.get("zone"))


def _offset_s(zone: str | None) -> float:
    if zone is None or zone[0] not in "+-":
        return 0.0
    digits = zone[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return offset.total_seconds() * (-1 if zone[0] == "-" else 1)
