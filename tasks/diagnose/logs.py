"""Reads log files as training jobs leave them: large, interleaved, with progress bars and colours.

Memory stays bounded whatever a file holds: it is read in blocks, and a piece of text longer than
MAX_TEXT_CHARS is cut. A line that a progress bar has rewritten with carriage returns gives one
`LogLine` per rewrite, all with the same number, so that an error printed behind the bar is seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.diagnose.patterns import compile_pattern

MAX_TEXT_CHARS = 4096
_BLOCK_BYTES = 1 << 16
_MAX_PIECE_BYTES = 4 * MAX_TEXT_CHARS

_TERMINATORS = re.compile(rb"[\r\n]")
_ANSI = compile_pattern(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*\x07?|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

# What launchers put before a rank's own text. Removed repeatedly: prefixes nest.
_PREFIXES = (
    compile_pattern(r"\[(?:rank|default)(?P<rank>\d+)\]:? ?"),
    compile_pattern(r"\[\d+,(?P<rank>\d+)\]<std(?:err|out)>: ?"),
    compile_pattern(r"\((?:[^()]*\brank=(?P<rank>\d+))?[^()]*\bpid=\d+[^()]*\) ?"),
    compile_pattern(r"(?P<rank>\d{1,5}): "),
    compile_pattern(r"\(RANK (?P<rank>\d+)\) ?"),
)
_MAX_PREFIXES = 3
_PREFIX_STARTS = frozenset("[(0123456789")
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
        return f"{self.file}:{self.number}: {self.text.strip()[:500]}"


def attempt_log_files(attempt_path: Path) -> list[Path]:
    """Log files of an attempt: every rank's, then the launcher's."""
    ranks = sorted(p for p in attempt_path.glob("rank_*.log") if _RANK_LOG.fullmatch(p.name))
    launcher = attempt_path / "job" / "launcher.log"
    return [*ranks, launcher] if launcher.is_file() else ranks


def read_log(path: Path, name: str | None = None) -> Iterator[LogLine]:
    """Yield the lines of a file. `name` is how evidence calls it; a rank_N.log gives its rank."""
    match = _RANK_LOG.fullmatch(path.name)
    file_rank = int(match[1]) if match else None
    for number, raw in _pieces(path):
        text = _clean(raw)
        if text.strip():
            rank, body = split_prefix(text)
            rank = file_rank if file_rank is not None else rank
            yield LogLine(name or path.name, number, rank, text, body)


def split_prefix(text: str) -> tuple[int | None, str]:
    """Take launchers' prefixes off: the rank that they name, and the rest."""
    rank: int | None = None
    for _ in range(_MAX_PREFIXES):
        if text[:1] not in _PREFIX_STARTS:
            break
        match = next((m for p in _PREFIXES if (m := p.match(text))), None)
        if match is None:
            break
        rank = int(match["rank"]) if match["rank"] else rank
        text = text[match.end() :]
    return rank, text


def _clean(raw: bytes) -> str:
    text = raw.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("", text)[:MAX_TEXT_CHARS]


def _pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, bytes) between newlines and carriage returns; long ones are cut."""
    number, piece = 1, b""
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            start = 0
            for match in _TERMINATORS.finditer(block):
                piece = _extend(piece, block[start : match.start()])
                if piece:
                    yield number, piece
                piece, start = b"", match.end()
                number += match[0] == b"\n"
            piece = _extend(piece, block[start:])
    if piece:
        yield number, piece


def _extend(piece: bytes, more: bytes) -> bytes:
    return piece + more[: _MAX_PIECE_BYTES - len(piece)]
