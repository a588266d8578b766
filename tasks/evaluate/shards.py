"""Names shards by what they ask of whom, finds those that are done, and cuts the rest.

A shard's name holds the hash of its requests, the model and how it is run. One that is there is the
answer to exactly these requests, whoever made it and for which plan: when the number of workers, the
limit or the other tasks change, what is done stays done.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.evaluate.manifest import RequestRow

Range = tuple[int, int]
"""Positions of a task's rows: from (included) to (excluded)."""

_NAME = re.compile(r"(?P<task>.*)\.(?P<start>\d{6,})-(?P<stop>\d{6,})\.[0-9a-f]{24}")
_LONGEST_TASK = 60


@dataclass(frozen=True)
class TaskRows:
    """A task's rows, and what its shards' names are made of."""

    task: str
    rows: Sequence[RequestRow]
    answerer_sha256: str
    """Hash of the model and of how it is run."""

    def name(self, rows: Range) -> str:
        """The name of the shard of these rows."""
        start, stop = rows
        digest = hashlib.sha256(f"{self.answerer_sha256}\n{self.task}\n".encode())
        for row in self.rows[start:stop]:
            fields = f"{row.document} {row.request_type} {row.index} {row.repeats} {row.sha256}\n"
            digest.update(fields.encode())
        return f"{_readable(self.task)}.{start:06d}-{stop:06d}.{digest.hexdigest()[:24]}"

    def done(self, names: Iterable[str]) -> dict[Range, str]:
        """Those of the names that are shards of these rows, in order; none overlaps another."""
        prefix = _readable(self.task)
        found: dict[Range, str] = {}
        for name in names:
            match = _NAME.fullmatch(name)
            if match is None or match["task"] != prefix:
                continue
            rows = (int(match["start"]), int(match["stop"]))
            if rows[0] < rows[1] <= len(self.rows) and self.name(rows) == name:
                found[rows] = name
        kept: dict[Range, str] = {}
        end = 0
        for rows in sorted(found, key=lambda r: (r[0], -r[1])):
            if rows[0] >= end:
                kept[rows] = found[rows]
                end = rows[1]
        return kept

    def units(self, taken: Iterable[Range]) -> list[list[Range]]:
        """What is not taken, by request type: the smallest pieces that may be told apart.

        A piece is a document's requests of one type, which share forward passes. Answers that are
        drawn at random depend on those before: such a task is one piece, so that it is answered as
        by lm-eval.
        """
        taken_rows = {position for start, stop in taken for position in range(start, stop)}
        pieces: dict[str, list[Range]] = {}
        start = 0
        for stop in self._ends():
            if start not in taken_rows:
                pieces.setdefault(self.rows[start].request_type, []).append((start, stop))
            start = stop
        return list(pieces.values())

    def _ends(self) -> list[int]:
        """Position after each piece."""
        ends = []
        sampled = {row.request_type for row in self.rows if row.is_sampled}
        for position, row in enumerate(self.rows):
            following = self.rows[position + 1] if position + 1 < len(self.rows) else None
            is_last = following is None or following.request_type != row.request_type
            is_whole = following is None or following.document != row.document
            if is_last or (is_whole and row.request_type not in sampled):
                ends.append(position + 1)
        return ends


def join(pieces: Sequence[Range]) -> list[Range]:
    """Neighbours among the pieces, made one."""
    joined: list[Range] = []
    for start, stop in pieces:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def names_in(*folders: Path) -> list[str]:
    """Names of the shards that are done in these folders."""
    return sorted({path.stem for folder in folders for path in folder.glob("*.jsonl")})


def _readable(task: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", task)[:_LONGEST_TASK]
