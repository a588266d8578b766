"""Lines of logs as training jobs leave them: large, interleaved, with progress bars and colours.

Memory stays bounded whatever a file holds: it is read in blocks, and a piece of text longer than
MAX_TEXT_CHARS loses its middle. A line that a progress bar has rewritten with carriage returns
gives one `LogLine` per rewrite, all with the same number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.diagnose.blocks import Block, clean, without_middle
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.sources import Source, blocks_of, rank_of_file

MAX_TEXT_CHARS = 4096
MAX_RANKS = 100_000
"""A larger number is no rank: sets of ranks are kept as bits."""
_QUOTE_CHARS = 500
_CUT = " ... "

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Commands to a terminal, what reorders or hides text, and halves of characters."""

# What launchers put before a rank's own text. Removed repeatedly: prefixes nest. The one that may hold
# anything is RE2; the others cannot go back over what they took, and Python's own engine is faster.
_PREFIX = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6,9}(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?|"
    r"\[(?:rank|default)(\d{1,6})\]:? ?|(\d{1,5}): |\[\d{1,6},(?:mpirank:)?(\d{1,6})(?:,[\w.-]{1,80})?\]<std(?:err|out)>: ?|"
    r"\(RANK (\d{1,6})\) ?"
)
_ACTOR = compile_pattern(r"\((?:[^()]*\brank=(?P<rank>\d{1,6})\b)?[^()]*\bpid=\d+[^()]*\) ?")
# Behind what a container, a pipe or another launcher puts before every line.
_INNER_RANK = re.compile(
    r"(?:[^\[\]'\"]{1,80}\[(?:rank|default)(\d{1,6})\]:|[\d\s:.,TZ/+-]{8,40}\[?rank[ _]?(\d{1,6})\]?:?|"
    r"\[?[\d\s:.,TZ/+-]{8,40}\]? ?r(\d{1,6})(?=[ :] ?[a-z])|"
    r"[^'\"|{}]{0,60}(?:\|r(?:ank ?)?(\d{1,6})\||\{rank ?(\d{1,6})\})) ?"
)
# As `srun --label` with the host put before it.
_HOST_AND_RANK = re.compile(r"(?=[A-Za-z][A-Za-z0-9_.-]{0,60}\d {1,4}\d{1,5}: )\S+ +(\d+): ")
_MAX_PREFIXES = 3
_PREFIX_STARTS = frozenset("[(0123456789")
_OWN_RANK = compile_pattern(r"(?i)(?:^|[\s,\[(|])(?:global_)?rank[=: ]{1,2}(?P<rank>\d{1,6})\b")
_RANK_LOG = re.compile(r"rank_(\d+)\.log")


@dataclass(frozen=True)
class LogLine:
    """One line, or one rewrite of a line, of a log file."""

    file: str
    """Path as it is quoted in evidence."""
    number: int
    """1-based, counting newlines only."""
    rank: int | None
    text: str
    """Without colours and control characters, with the launcher's prefix."""
    body: str
    """The text without the prefix: what the rank itself wrote."""

    @property
    def quote(self) -> str:
        """The line as evidence: file, number, text."""
        return f"{self.file}:{self.number}: {shortened(self.text.strip(), _QUOTE_CHARS)}"


def attempt_log_files(attempt_path: Path) -> list[Path]:
    """Log files of an attempt: every rank's, then the launcher's."""
    ranks = sorted(p for p in attempt_path.glob("rank_*.log") if _RANK_LOG.fullmatch(p.name))
    launcher = attempt_path / "job" / "launcher.log"
    return [*ranks, launcher] if launcher.is_file() else ranks


def read_log(path: Path, name: str | None = None) -> Iterator[LogLine]:
    """Yield the lines of a file, plain or compressed, as it is now.

    `name` is how evidence calls it; the rank is the file's, if its name tells, or the line's own.
    """
    source = Source(path, name or path.name, rank_of_file(path))
    return lines_of(blocks_of(source), source)


def lines_of(blocks: Iterable[Block], source: Source) -> Iterator[LogLine]:
    """Yield the lines of blocks; blank ones are left out."""
    for block in blocks:
        for number, piece in zip(block.numbers, block.pieces(), strict=True):
            if piece and (line := make_line(piece, number, source)) is not None:
                yield line


def make_line(piece: bytes, number: int, source: Source) -> LogLine | None:
    """The line of a piece; None for a blank one."""
    text = _text(without_middle(clean(piece)))
    if not text.strip():
        return None
    rank, body = split_prefix(text)
    return LogLine(source.name, number, rank if source.rank is None else source.rank, text, body)


def writer_of(line: LogLine) -> int | None:
    """The rank that a line is of: by its launcher's label, or by its own words."""
    if line.rank is not None:
        return line.rank
    match = _OWN_RANK.search(line.body)
    return int(match["rank"]) if match is not None and int(match["rank"]) < MAX_RANKS else None


def split_prefix(text: str) -> tuple[int | None, str]:
    """Take launchers' prefixes off: the rank that they name, and the rest."""
    rank: int | None = None
    for _ in range(_MAX_PREFIXES):
        if text[:1] in _PREFIX_STARTS and (match := _PREFIX.match(text)) is not None:
            rank, end = int(match[match.lastindex]) if match.lastindex else rank, match.end()
        elif text[:1] == "(" and (actor := _ACTOR.match(text)) is not None:
            rank, end = int(actor["rank"]) if actor["rank"] else rank, actor.end()
        elif rank is None and (inner := _INNER_RANK.match(text)) is not None:
            rank, end = int(inner[inner.lastindex or 0]), inner.end()
        elif rank is None and (labelled := _HOST_AND_RANK.match(text)) is not None:
            rank, end = int(labelled[1]), labelled.end()
        else:
            break
        text = text[end:]
    return rank, text


def without_controls(text: str) -> str:
    """The text without what a terminal would obey, or could not show: of a record, whose escapes are undone."""
    return _CONTROL.sub("", text)


def shortened(text: str, max_chars: int) -> str:
    """The text, without its middle when it is longer: what an error says stands at its start or its end.

    The words beside the cut go with it: a piece of a key, or what stood behind `password=`, would not be known for a secret.
    """
    if len(text) <= max_chars:
        return text
    tail = max_chars // 4
    head = text[: max_chars - tail - len(_CUT)]
    return (head.rpartition(" ")[0] or head) + _CUT + text[-tail:].partition(" ")[2]


def is_shortened(text: str) -> bool:
    """Whether it is that of a line which has lost its middle."""
    return len(text) > MAX_TEXT_CHARS // 2 and _CUT in text


def _text(piece: bytes) -> str:
    return shortened(without_controls(piece.decode("utf-8", errors="replace")), MAX_TEXT_CHARS)
