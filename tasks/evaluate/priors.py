"""How long tasks take: measured times in a small local store, and estimates for what was never measured.

An estimate starts from counts (tokens, documents, bytes) and the model's size. What was measured says
by which factor that is wrong: for the backend in general, for the task, and for this task on models of
about this size. Each level is a robust mean of factors that leans on the level above until it has
samples of its own, so a model that nobody has run starts from the others, scaled to its size.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from configs.errors import EvaluationError
from configs.files import file_lock
from tasks.evaluate.priors_robust import robust_location

Phase = Literal["load", "prefill", "decode", "metric"]

_LAYOUT = 1
_KEPT = 24
"""Measurements of one task, phase, backend and model size; older ones make room."""
_LEAN = 0.5
"""Samples' worth of trust in the level above."""
_SIZE_SPAN = math.log(8)
"""Models that differ by this factor in size say e times less about each other."""

FIRST_GUESS_S: dict[Phase, float] = {
    "load": 1 / 1.0e9,
    "prefill": 2 / 1.0e14,
    "decode": 2 / 2.0e12,
    "metric": 1.0e-3,
}
"""Seconds of a unit before anything was measured: of a byte; of a token and parameter; of a document."""
_SCALED_BY_MODEL: tuple[Phase, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured phase of one trial."""

    task: str
    """Empty for loads, which are no task's."""
    phase: Phase
    backend: str
    """What ran it, with the machine where that matters, like `hf-a100`."""
    parameters: float
    """Of the model; 1 for metrics, which know no model."""
    units: float
    """Bytes loaded, tokens read, tokens generated, documents scored."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a phase is expected to take."""

    seconds: float
    spread: float
    """Most of the time it takes between seconds / (1 + spread) and seconds x (1 + spread)."""
    samples: int
    """Measurements of this very task, phase, backend and model size."""


class Priors:
    """The store. Any number of processes may read it; one writes at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cache: dict[tuple[Phase, str], list[_Sample]] = {}
        self._cached_version: int | None = None
        with self._connect() as connection, self._writing():
            connection.executescript(_TABLES)
            found = connection.execute("SELECT layout FROM about").fetchone()
            if found is None:
                connection.execute("INSERT INTO about VALUES (?)", (_LAYOUT,))
            elif found[0] != _LAYOUT:
                raise EvaluationError(
                    f"{path} has layout {found[0]}, this version knows {_LAYOUT}: "
                    "give evaluate another file for its priors"
                )
            connection.commit()

    def record(self, measurements: Iterable[Measurement]) -> None:
        """Add what a trial has measured. Phases without work say nothing and are left out."""
        rows = [
            (m.task, m.phase, m.backend, m.parameters, m.units, m.seconds, time.time())
            for m in measurements
            if m.units > 0 and m.parameters > 0 and 0 < m.seconds < math.inf
        ]
        with self._writing(), self._connect() as connection:
            connection.executemany(_INSERT, rows)
            for row in {row[:4] for row in rows}:
                connection.execute(_PRUNE, (*row, *row, _KEPT))
            connection.commit()

    def estimate(
        self, phase: Phase, *, task: str, backend: str, parameters: float, units: float
    ) -> Estimate:
        """How long `units` of this phase will take."""
        if units <= 0:
            return Estimate(0.0, 0.0, 0)
        size = parameters if phase in _SCALED_BY_MODEL else 1.0
        samples = self._samples(phase, backend)
        general, general_scale = _general(samples, size)
        own = [sample for sample in samples if sample.task == task]
        nearness = [_nearness(sample.size, size) for sample in own]
        factors = [sample.log_factor for sample in own]
        factor, scale = robust_location(
            factors, nearness, prior=general, prior_weight=_LEAN if task else 0.0
        )
        exact = [sample for sample in own if sample.size == size]
        if exact:  # Measured itself: that counts for more than what is like it.
            factor, scale = robust_location(
                [sample.log_factor for sample in exact],
                [1.0] * len(exact),
                prior=factor,
                prior_weight=_LEAN / (1 + len(exact)),
            )
        scale = max(scale, general_scale / (1 + len(own)))
        return Estimate(
            units * size * FIRST_GUESS_S[phase] * math.exp(factor), math.expm1(scale), len(exact)
        )

    def _samples(self, phase: Phase, backend: str) -> list[_Sample]:
        """All measurements of the phase and backend, read again when somebody has written."""
        with self._connect() as connection:
            written = connection.execute("SELECT max(rowid) FROM measured").fetchone()[0]
            if written != self._cached_version:
                self._cache.clear()
                self._cached_version = written
            if (phase, backend) not in self._cache:
                rows = connection.execute(_SELECT, (phase, backend))
                self._cache[phase, backend] = [_sample(phase, *row) for row in rows]
        return self._cache[phase, backend]

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=60.0)) as connection:
                yield connection
        except sqlite3.DatabaseError as error:
            raise EvaluationError(
                f"{self._path} cannot be used as the store of measured times ({error}): "
                "remove it, and estimates start from counts again"
            ) from error
        except OSError as error:
            raise EvaluationError(
                f"{self._path} cannot be made for measured times: {error.strerror}"
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A lock beside the file: SQLite's own is not to be trusted on every shared file system."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self._path.with_name(self._path.name + ".lock")):
            yield


@dataclass(frozen=True, slots=True)
class _Sample:
    task: str
    size: float
    log_factor: float
    """Logarithm of measured over first guess."""


def _sample(phase: Phase, task: str, parameters: float, units: float, seconds: float) -> _Sample:
    size = parameters if phase in _SCALED_BY_MODEL else 1.0
    return _Sample(task, size, math.log(seconds / (units * size * FIRST_GUESS_S[phase])))


def _general(samples: list[_Sample], size: float) -> tuple[float, float]:
    """The factor of tasks in general: each task and model size counts once, however often it ran."""
    groups: dict[tuple[str, float], list[float]] = defaultdict(list)
    for sample in samples:
        groups[sample.task, sample.size].append(sample.log_factor)
    centres = [robust_location(values, [1.0] * len(values))[0] for values in groups.values()]
    return robust_location(
        centres, [_nearness(own, size) for _, own in groups], least_scale=0.7 if not groups else 0.1
    )


def _nearness(one: float, other: float) -> float:
    return max(math.exp(-abs(math.log(one / other)) / _SIZE_SPAN), 1e-6)


_TABLES = """
CREATE TABLE IF NOT EXISTS about (layout INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS measured (
    task TEXT NOT NULL, phase TEXT NOT NULL, backend TEXT NOT NULL, parameters REAL NOT NULL,
    units REAL NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS measured_by_phase ON measured (phase, backend, task, parameters);
"""
_INSERT = "INSERT INTO measured VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = (
    "SELECT task, parameters, units, seconds FROM measured WHERE phase = ? AND backend = ? "
    "ORDER BY rowid"
)
_PRUNE = """
DELETE FROM measured WHERE task = ? AND phase = ? AND backend = ? AND parameters = ? AND rowid NOT IN (
    SELECT rowid FROM measured WHERE task = ? AND phase = ? AND backend = ? AND parameters = ?
    ORDER BY rowid DESC LIMIT ?
)
"""
