"""How long ago each rank was last heard of, as monitors list it: the one that is silent for far longer hangs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import MAX_RANKS, LogLine
from tasks.diagnose.patterns import compile_pattern

_OF_RANKS = compile_pattern(
    r"(?i)\b(?:heart[-_ ]?beats?|last[-_ ](?:seen|alive|heard|beat|report|progress|activity)|alive|hb|liveness|idle|silen(?:t|ce))\b"
)
_WORDS = ("beat", "seen", "alive", "heard", "hb", "last", "liveness", "idle", "silen")
_ENTRY = compile_pattern(
    r"(?i)(?:^|[\s,;({\[|])(?:rank[ _]?|r|p)?(?P<low>\d{1,6})(?:-(?P<high>\d{1,6}))?[\"']?(?:: ?|=| )(?P<age>\d{1,7}(?:\.\d{1,3})?) ?(?:s|sec|seconds)?(?:[\s,;)}\]|]|$)"
)
_ONE = compile_pattern(
    r"(?i)\brank[ _=:]{0,2}(?P<rank>\d{1,6})\b.{0,40}?\b(?:heart[-_ ]?beat|last[-_ ](?:seen|alive|heard|beat)|hb|age|silent)\b\D{0,24}?(?P<age>\d{1,7}(?:\.\d{1,3})?) ?s(?:ec(?:onds)?)?\b"
)
_MIN_ENTRIES = 3
_MIN_AGE_S = 60.0
_FAR_LONGER = 3.0
_MAX_ENTRIES = 4096


@dataclass
class HeartbeatAges:
    """Feed it lines; it holds the ages that were listed last."""

    ages: dict[tuple[int, int], float] = field(default_factory=dict)
    """Seconds, by first and last rank of what the list names together."""
    seen: tuple[str, int] = ("", 0)
    """The file of the last line, and the steps that it had reported before."""
    line: LogLine | None = None

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        found = _ages_in(line.body)
        if not found:
            return
        one = len(found) == 1
        if one and len(self.ages) >= _MAX_ENTRIES:
            return
        if not one:
            self.ages = {}
        self.ages.update(found)
        self.seen, self.line = (line.file, steps), line

    def merge(self, other: HeartbeatAges) -> None:
        """Take over what later files tell."""
        if other.line is not None:
            self.ages, self.seen, self.line = other.ages, other.seen, other.line

    def silent_rank(self) -> int | None:
        """The one rank that was silent for far longer than any other."""
        if len(self.ages) < _MIN_ENTRIES:
            return None
        (*_, second, longest) = sorted(self.ages, key=lambda ranks: self.ages[ranks])
        age = self.ages[longest]
        alone = longest[0] == longest[1] and age > _FAR_LONGER * self.ages[second]
        return longest[0] if alone and age >= _MIN_AGE_S else None


def tells_heartbeats(body: str) -> bool:
    """Whether the line says how long ago ranks were heard of."""
    return bool(_ages_in(body))


def _ages_in(body: str) -> dict[tuple[int, int], float]:
    lower = body.lower()
    if not any(word in lower for word in _WORDS) or (match := _OF_RANKS.search(body)) is None:
        return {}
    rest = body[match.end() :]
    if rest.count(":") + rest.count("=") + rest.count(",") < _MIN_ENTRIES - 1:
        return _of_one(body)
    found: dict[tuple[int, int], float] = {}
    while len(found) < _MAX_ENTRIES and (entry := _ENTRY.search(rest)) is not None:
        low, high = int(entry["low"]), int(entry["high"] or entry["low"])
        if not low <= high < MAX_RANKS or (low, high) in found:
            return {}
        found[(low, high)] = float(entry["age"])
        rest = rest[max(entry.end() - 1, 1) :]
    return found if len(found) >= _MIN_ENTRIES else _of_one(body)


def _of_one(body: str) -> dict[tuple[int, int], float]:
    match = _ONE.search(body)
    if match is None or int(match["rank"]) >= MAX_RANKS:
        return {}
    rank = int(match["rank"])
    return {(rank, rank): float(match["age"])}
