"""Past cases that read like a failure at hand, out of an embedded vector store.

The store is SQLite with the sqlite-vec extension, in one file. It is a view of the packaged cases and
of the confirmed ones (confirmed.py's JSON lines): it is brought up to date when it is opened, built
anew when it is damaged or was made with another embedding, and kept in memory where its folder
cannot be written. apsw carries its own SQLite, for many Pythons' cannot load extensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import apsw
import sqlite_vec  # type: ignore[import-untyped]

from configs.files import file_lock, resolved
from tasks.diagnose.cases import CONFIRMED_NAME, Case, confirmed_cases, packaged_cases
from tasks.diagnose.cause_words import is_strong
from tasks.diagnose.confirmed import cases_folder
from tasks.diagnose.embed import Embedding, HashedNgrams, SentenceModel, normalise

ALIKE = 0.8
"""From here on the nearest case's class was right in all of ten logs; from 0.7 on, in three of four."""
WORTH_SHOWING = 0.4
_STORE_NAME = "cases.db"
_BUSY_MS = 5000
_WINDOW_LINES = 1
_MAX_WINDOWS = 24
_SHORT_TEXT_LINES = 12
_SPARE_NEIGHBOURS = 4

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (embedding TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cases (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, class TEXT NOT NULL, root TEXT NOT NULL,
    text TEXT NOT NULL, resolution TEXT NOT NULL, source TEXT NOT NULL
);
CREATE VIRTUAL TABLE IF NOT EXISTS vectors USING vec0 (
    number INTEGER PRIMARY KEY, vector FLOAT[{dimension}] distance_metric=cosine
);
"""
_CASE_COLUMNS = "id, class, root, text, resolution, source"


@dataclass(frozen=True)
class Neighbour:
    """A past case that reads like the failure at hand."""

    case: Case
    similarity: float
    """Cosine, up to 1."""

    @property
    def quote(self) -> str:
        """The case as evidence."""
        root = self.case.root or self.case.lines[0]
        then = f"; then: {self.case.resolution}" if self.case.resolution else ""
        return (
            f"like case {self.case.id} ({self.case.failure_class}, {self.similarity:.2f}): "
            f"{root[:160]!r}{then}"
        )


class CaseStore:
    """Past cases with their vectors. Close it, or use it as a context."""

    def __init__(self, folder: Path | None, embedding: Embedding) -> None:
        self._embedding = embedding
        self.path = None if folder is None else folder / _STORE_NAME
        cases = list(packaged_cases())
        if folder is not None:
            known = {case.id for case in cases}
            new = confirmed_cases(folder / CONFIRMED_NAME)
            cases += [case for case in new if case.id not in known]
        self._connection = self._open(cases)

    def __enter__(self) -> CaseStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._connection.execute("SELECT number FROM cases").fetchall())

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def nearest(self, text: str, k: int = 3) -> list[Neighbour]:
        """The cases most like the text, best first. A long log is compared piece by piece."""
        best: dict[int, float] = {}
        for vector in self._embedding.embed(windows(text)):
            if not vector.any():
                continue
            for number, distance in self._connection.execute(
                "SELECT number, distance FROM vectors WHERE vector MATCH ? AND k = ?",
                (vector.tobytes(), k + _SPARE_NEIGHBOURS),
            ):
                similarity = 1.0 - float(distance)
                best[number] = max(similarity, best.get(number, 0.0))
        numbers = sorted(best, key=lambda number: (-best[number], number))[:k]
        return [Neighbour(self._case(number), best[number]) for number in numbers]

    def _case(self, number: int) -> Case:
        row = self._connection.execute(
            f"SELECT {_CASE_COLUMNS} FROM cases WHERE number = ?",  # noqa: S608
            (number,),
        ).fetchall()[0]
        return _case_of(row)

    # ------------------------------------------------------------ keeping it up to date

    def _open(self, cases: list[Case]) -> apsw.Connection:
        if self.path is not None:
            try:
                return self._open_file(self.path, cases)
            except (OSError, apsw.Error):  # full, read-only, or storage without locks
                self.path = None
        connection = _connect(":memory:")
        self._update(connection, cases)
        return connection

    def _open_file(self, path: Path, cases: list[Case]) -> apsw.Connection:
        with file_lock(path.with_suffix(".lock")):  # one writer
            connection = _connect(str(path))
            try:
                self._update(connection, cases)
            except (
                apsw.NotADBError,
                apsw.CorruptError,
                apsw.SQLError,
            ):  # damaged, or another format
                connection.close()
                path.unlink()
                connection = _connect(str(path))
                self._update(connection, cases)
        return connection

    def _update(self, connection: apsw.Connection, cases: list[Case]) -> None:
        """Make the store hold exactly these cases, in vectors of this embedding."""
        with connection:
            if self._embedding_of(connection) != self._embedding.name:
                self._create(connection)
            stored = {
                _case_of(row): number
                for number, *row in connection.execute(f"SELECT number, {_CASE_COLUMNS} FROM cases")  # noqa: S608
            }
            wanted = dict.fromkeys(cases)
            for number in (stored[case] for case in stored if case not in wanted):
                connection.execute("DELETE FROM cases WHERE number = ?", (number,))
                connection.execute("DELETE FROM vectors WHERE number = ?", (number,))
            self._insert(connection, [case for case in wanted if case not in stored])

    def _embedding_of(self, connection: apsw.Connection) -> str | None:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE name = 'about'"
        ).fetchall()
        rows = connection.execute("SELECT embedding FROM about").fetchall() if tables else []
        return str(rows[0][0]) if rows else None

    def _create(self, connection: apsw.Connection) -> None:
        for table in ("about", "cases", "vectors"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(_SCHEMA.format(dimension=self._embedding.dimension))
        connection.execute("INSERT INTO about VALUES (?)", (self._embedding.name,))

    def _insert(self, connection: apsw.Connection, cases: list[Case]) -> None:
        vectors = self._embedding.embed([case.indexed_text() for case in cases])
        for case, vector in zip(cases, vectors, strict=True):
            row = (case.id, case.failure_class, case.root, case.text, case.resolution, case.source)
            connection.execute(
                f"INSERT INTO cases ({_CASE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
                row,
            )
            number = connection.last_insert_rowid()
            connection.execute(
                "INSERT INTO vectors (number, vector) VALUES (?, ?)", (number, vector.tobytes())
            )


def open_cases(folder: Path | None = None, model: Path | None = None) -> CaseStore:
    """The store in a folder (None: where confirmed cases are kept), up to date.

    `model` is a folder with a sentence-embedding model, in place of the built-in embedding.
    """
    embedding = built_in_embedding() if model is None else SentenceModel(resolved(model))
    return CaseStore(folder or cases_folder(), embedding)


def nearest(
    text: str, k: int = 3, folder: Path | None = None, model: Path | None = None
) -> list[Neighbour]:
    """The k past cases that are most like a (compressed) log, best first."""
    with open_cases(folder, model) as store:
        return store.nearest(text, k)


@lru_cache(maxsize=1)
def built_in_embedding() -> HashedNgrams:
    """The embedding that needs no model, fitted to the packaged cases."""
    return HashedNgrams([case.indexed_text() for case in packaged_cases()])


def windows(text: str) -> list[str]:
    """Pieces of a log to compare with cases: lines that speak of a failure, with their neighbours.

    The words of a whole log would bury those of its one telling line.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    telling = [index for index, line in enumerate(lines) if is_strong(line)]
    pieces: dict[str, str] = {}
    if len(lines) <= _SHORT_TEXT_LINES or not telling:
        _add(pieces, lines[-_SHORT_TEXT_LINES:])
    for index in _ends_first(telling):
        _add(pieces, [lines[index]])
        _add(pieces, lines[max(0, index - _WINDOW_LINES) : index + _WINDOW_LINES + 1])
        if len(pieces) >= _MAX_WINDOWS:
            break
    return list(pieces.values())


def _add(pieces: dict[str, str], lines: Sequence[str]) -> None:
    piece = "\n".join(lines)
    pieces.setdefault(normalise(piece), piece)


def _ends_first(indexes: Sequence[int]) -> Iterable[int]:
    """First, last, second, last but one: causes come early, summaries late."""
    for low in range((len(indexes) + 1) // 2):
        yield indexes[low]
        if len(indexes) - 1 - low != low:
            yield indexes[len(indexes) - 1 - low]


def _connect(path: str) -> apsw.Connection:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(_BUSY_MS)
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.enable_load_extension(False)
    return connection


def _case_of(row: Iterable[Any]) -> Case:
    identity, failure_class, root, text, resolution, source = map(str, row)
    return Case(identity, failure_class, root, text, resolution, cast(Any, source))
