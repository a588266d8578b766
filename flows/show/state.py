"""What a run is doing, read from its run directory alone.

`RunView.refresh()` returns a `Snapshot`; it may be called twice a second for weeks, beside the run
or from another terminal. It writes nothing and asks neither Prefect nor MLflow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from configs.errors import ConfigError
from configs.events import AnomalyEvent, CheckpointEvent, FaultEvent
from configs.load import load_config
from configs.records import DataManifest, EvaluationFailure, EvaluationScores
from configs.regressions import EvaluationLeftOut, RegressionReport
from configs.rundir import RunDir, step_of_folder
from configs.schema import RunConfig
from flows.show.readers import (
    AttemptReader,
    AttemptView,
    CachedRecord,
    EvaluationReader,
    EvaluationView,
)
from flows.show.trajectory import LostSnapshot, SnapshotCounts, Trajectory

Stage = Literal["prepare", "pretrain", "evaluate", "done"]


@dataclass(frozen=True)
class CheckpointView:
    """A committed checkpoint."""

    step: int
    path: Path
    size_bytes: int
    committed_at: float
    duration_s: float


@dataclass(frozen=True)
class Restart:
    """A failed attempt after which the run went on."""

    attempt: int
    failure_class: str
    action: str
    reason: str


@dataclass(frozen=True)
class Snapshot:
    """A run as of `time`."""

    time: float
    stage: Stage
    total_steps: int | None
    manifest: DataManifest | None
    step: int
    """Last step that counts: a restart sets it back to its checkpoint's."""
    loss: float | None
    validation_loss: float | None
    validation_step: int | None
    tokens_per_s: float | None
    step_time_s: float | None
    """Median of recent steps."""
    time_left_s: float | None
    last_event_at: float | None
    """Last sign of life of the training job."""
    checkpoints: tuple[CheckpointView, ...]
    failed_saves: tuple[CheckpointEvent, ...]
    attempts: tuple[AttemptView, ...]
    faults: tuple[tuple[int, FaultEvent], ...]
    """Attempt and fault, in order."""
    anomalies: tuple[tuple[int, AnomalyEvent], ...]
    """Attempt and anomaly, in order."""
    snapshots: SnapshotCounts
    lost_snapshots: tuple[LostSnapshot, ...]
    """Those that could have outlived their process, in order."""
    evaluations: tuple[EvaluationView, ...]

    @property
    def attempt(self) -> AttemptView | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def last_checkpoint(self) -> CheckpointView | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def restarts(self) -> list[Restart]:
        """Failed attempts after which the run went on, or goes on now."""
        return [
            Restart(a.number, a.verdict.failure_class, a.action.kind, a.action.reason)
            for a in self.attempts
            if a.failed and a.verdict and a.action and not a.action.stop
        ]

    @property
    def live_evaluations(self) -> list[EvaluationView]:
        return [e for e in self.evaluations if not e.ended]

    @property
    def scores(self) -> list[EvaluationScores]:
        return [e.scores for e in self.evaluations if e.scores]

    @property
    def evaluation_failures(self) -> list[EvaluationFailure]:
        return [e.failure for e in self.evaluations if e.failure]

    @property
    def evaluations_left_out(self) -> list[EvaluationLeftOut]:
        return [e.left_out for e in self.evaluations if e.left_out]

    @property
    def regressions(self) -> list[RegressionReport]:
        """Of the checkpoints that have regressed."""
        reports = [e.regressions for e in self.evaluations if e.regressions]
        return [report for report in reports if report.regressions]


class RunView:
    """Follows one run directory."""

    def __init__(self, run: RunDir, *, total_steps: int | None = None) -> None:
        self._run = run
        self._given_total_steps = total_steps
        self._config: RunConfig | None = None
        self._config_mtime_ns = 0
        self._manifest = CachedRecord(run.manifest_path, DataManifest)
        self._attempts: dict[int, AttemptReader] = {}
        self._checkpoints: dict[int, CheckpointView] = {}
        self._evaluations: dict[int, EvaluationReader] = {}
        self._trajectory = Trajectory()

    def refresh(self, now: float | None = None) -> Snapshot:
        """The run as of now (Unix seconds)."""
        self._read_config()
        self._read_attempts()
        self._read_checkpoints()
        self._read_evaluations()
        return self._snapshot(time.time() if now is None else now)

    @property
    def total_steps(self) -> int | None:
        """As given, or as the run's config says."""
        if self._given_total_steps is not None or self._config is None:
            return self._given_total_steps
        return self._config.train.steps

    @property
    def keeps_snapshots(self) -> bool:
        """Whether the config lets snapshots outlive their process."""
        return self._config is not None and self._config.checkpoint.memory != "off"

    def _read_config(self) -> None:
        try:
            mtime_ns = self._run.config_path.stat().st_mtime_ns
            if mtime_ns != self._config_mtime_ns:
                self._config_mtime_ns = mtime_ns
                self._config = load_config(self._run.config_path)
        except (FileNotFoundError, ConfigError):
            self._config = None

    def _read_attempts(self) -> None:
        for attempt in self._run.attempts():
            if attempt.number not in self._attempts:
                self._attempts[attempt.number] = AttemptReader(attempt)
        newest = max(self._attempts, default=0)
        for number in sorted(self._attempts):
            for event in self._attempts[number].read(superseded=number < newest):
                self._trajectory.add(number, event)
                if isinstance(event, CheckpointEvent):
                    self._checkpoints.pop(event.step, None)

    def _read_checkpoints(self) -> None:
        steps = _steps_in(self._run.checkpoints_dir)
        for step in self._checkpoints.keys() - steps:
            del self._checkpoints[step]
        for step in steps - self._checkpoints.keys():
            checkpoint = self._run.checkpoint(step)
            if marker := checkpoint.marker():
                self._checkpoints[step] = CheckpointView(
                    step, checkpoint.path, marker.size_bytes, marker.committed_at, marker.duration_s
                )

    def _read_evaluations(self) -> None:
        for step in _steps_in(self._run.evaluations_dir) - self._evaluations.keys():
            self._evaluations[step] = EvaluationReader(self._run.evaluation(step))
        for reader in self._evaluations.values():
            reader.read()

    def _snapshot(self, now: float) -> Snapshot:
        trajectory = self._trajectory
        validation = trajectory.validation
        return Snapshot(
            time=now,
            stage=self._stage(),
            total_steps=self.total_steps,
            manifest=self._manifest.read(),
            step=trajectory.step,
            loss=trajectory.loss,
            validation_loss=validation.loss if validation else None,
            validation_step=validation.step if validation else None,
            tokens_per_s=trajectory.tokens_per_s,
            step_time_s=trajectory.step_time_s,
            time_left_s=trajectory.time_left_s(self.total_steps),
            last_event_at=trajectory.last_event_at,
            checkpoints=tuple(self._checkpoints[step] for step in sorted(self._checkpoints)),
            failed_saves=tuple(trajectory.failed_saves),
            attempts=tuple(self._attempts[number].view for number in sorted(self._attempts)),
            faults=tuple(trajectory.faults),
            anomalies=tuple(trajectory.anomalies),
            snapshots=trajectory.snapshots,
            lost_snapshots=tuple(trajectory.lost_snapshots) if self.keeps_snapshots else (),
            evaluations=tuple(self._evaluations[step].view for step in sorted(self._evaluations)),
        )

    def _stage(self) -> Stage:
        if not self._attempts:
            return "pretrain" if self._manifest.read() else "prepare"
        newest = self._attempts[max(self._attempts)].view
        outcome = newest.record.outcome if newest.record else None
        stopped = newest.action is not None and newest.action.stop
        if outcome != "completed" and not stopped:
            return "pretrain"
        return "evaluate" if self._evaluation_is_open(trained=outcome == "completed") else "done"

    def _evaluation_is_open(self, *, trained: bool) -> bool:
        if any(not reader.view.ended for reader in self._evaluations.values()):
            return True
        wanted = trained and self._config is not None and self._config.evaluate.enabled
        return (
            wanted
            and bool(self._checkpoints.keys() - self._evaluations.keys())
            and (max(self._checkpoints) not in self._evaluations)
        )


def _steps_in(folder: Path) -> set[int]:
    """Steps of the checkpoint or evaluation folders in `folder`."""
    try:
        return {step for path in folder.iterdir() if (step := step_of_folder(path)) is not None}
    except FileNotFoundError:
        return set()
