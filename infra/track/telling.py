"""What every part of the view needs: the run, the server, the cursor, and a push that happens once."""

from __future__ import annotations

from collections.abc import Mapping

from configs.rundir import RunDir
from infra.track.cursor import Cursor
from infra.track.points import Point, clean
from infra.track.server import Server

RUN_STATUS = {
    "completed": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
}
"""Outcome of an attempt or a run -> status of its MLflow run."""


class Telling:
    """Tells MLflow about one run directory. The cursor is saved after each thing told."""

    def __init__(self, run: RunDir, server: Server, cursor: Cursor) -> None:
        self.run = run
        self.server = server
        self.cursor = cursor
        self._held: dict[tuple[str, str], set[tuple[int, int]]] = {}

    def save(self) -> None:
        self.cursor.save(self.run)

    def begin_pass(self) -> None:
        """Forget what MLflow said it holds."""
        self._held = {}

    def end_pass(self) -> None:
        """Everything was told: nothing is in doubt any more."""
        if self.cursor.unconfirmed:
            self.cursor.unconfirmed = []
            self.save()

    @property
    def parent(self) -> str:
        """Id of the parent run."""
        if self.cursor.mlflow_run_id is None:
            raise AssertionError("the parent run is opened first")
        return self.cursor.mlflow_run_id

    @property
    def experiment(self) -> str:
        if self.cursor.experiment_id is None:
            raise AssertionError("the experiment is opened first")
        return self.cursor.experiment_id

    def open_run(
        self, path: str, name: str, start: float, parent: str | None, tags: Mapping[str, str]
    ) -> str:
        """Id of the MLflow run for `path` in the run directory, created when there is none."""
        run_id, created = self.server.run(
            self.experiment,
            self.key(path),
            name,
            start,
            parent_run_id=parent,
            tags={name: clean(value) for name, value in tags.items()},
        )
        if not created:
            self.cursor.unconfirmed.append(run_id)
        return run_id

    def key(self, path: str) -> str:
        """Names `path` in this run directory, in MLflow's tags."""
        return f"{self.cursor.key}/{path}".rstrip("/")

    def push(self, batch: Mapping[str, list[Point]]) -> None:
        """Log each run's points exactly once; the caller saves the cursor with what follows.

        The runs are noted before the push. Where a note is found later, a push was begun and its
        end is unknown (a crash, a time-out): then MLflow is asked what it holds.
        """
        batch = {run_id: points for run_id, points in batch.items() if points}
        if not batch:
            return
        doubtful = set(self.cursor.unconfirmed)
        self.cursor.unconfirmed = sorted(doubtful | set(batch))
        self.save()
        for run_id, points in batch.items():
            if run_id in doubtful:
                points = [point for point in points if not self._holds(run_id, point)]
            self.server.log_points(run_id, points)
        self.cursor.unconfirmed = sorted(doubtful)

    def _holds(self, run_id: str, point: Point) -> bool:
        """Whether MLflow has the point; asks once a pass for each metric."""
        history = self._held.get((run_id, point.key))
        if history is None:
            history = self.server.history(run_id, point.key)
            self._held[run_id, point.key] = history
        return (point.step, point.timestamp_ms) in history
