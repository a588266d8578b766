"""A real SQLite MLflow for each test: the schema is created once a session, and the file copied."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tracked_runs import RunWriter

from configs.rundir import RunDir
from configs.schema import TrackingConfig

_MEMORY = Path("/dev/shm")
"""MLflow syncs SQLite hundreds of times a run; a busy disk would make these tests slow."""


@pytest.fixture(scope="session")
def make_runs() -> Iterator[Callable[[], Path]]:
    """Makes folders for run directories, each with an empty MLflow database in it."""
    from infra.track.server import create_database

    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as home:
        empty = Path(home) / "mlflow.db"
        create_database(empty)
        numbers = itertools.count()

        def make() -> Path:
            folder = Path(home) / str(next(numbers)) / "runs"
            folder.mkdir(parents=True)
            shutil.copy(empty, folder / "mlflow.db")
            return folder

        yield make


@pytest.fixture
def runs(make_runs: Callable[[], Path]) -> Path:
    return make_runs()


@pytest.fixture
def writer(runs: Path) -> RunWriter:
    return RunWriter(RunDir(runs / "quick"), TrackingConfig())


@pytest.fixture
def whole(writer: RunWriter) -> RunWriter:
    writer.whole()
    return writer


@pytest.fixture
def small(writer: RunWriter) -> RunWriter:
    writer.small()
    return writer
