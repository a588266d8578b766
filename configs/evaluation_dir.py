"""The folder of one checkpoint's evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from configs.records import (
    EvaluationFailure,
    EvaluationScores,
    ExportRecord,
)
from configs.regressions import EvaluationLeftOut, RegressionReport
from configs.run_folders import CheckpointDir, read_record, step_folder_name

OfCheckpoint = TypeVar(
    "OfCheckpoint", ExportRecord, EvaluationScores, RegressionReport, EvaluationLeftOut
)


@dataclass(frozen=True)
class EvaluationDir:
    """One checkpoint's evaluation folder."""

    path: Path
    step: int

    @property
    def model_dir(self) -> Path:
        """The exported Hugging Face folder; renamed into place when whole."""
        return self.path / "model"

    @property
    def config_path(self) -> Path:
        """The EvaluateConfig of this evaluation, as JSON."""
        return self.path / "config.json"

    @property
    def export_path(self) -> Path:
        """When the export ran."""
        return self.path / "export.json"

    @property
    def tasks_dir(self) -> Path:
        """The lm-eval YAML files as they are run."""
        return self.path / "tasks"

    @property
    def plan_path(self) -> Path:
        return self.path / "plan.json"

    @property
    def responses_dir(self) -> Path:
        return self.path / "responses"

    @property
    def requests_dir(self) -> Path:
        """All requests as they were enumerated, a file a task."""
        return self.path / "requests"

    @property
    def documents_dir(self) -> Path:
        """The documents that the requests were made of."""
        return self.path / "documents"

    @property
    def claims_dir(self) -> Path:
        """Which worker has taken which shard."""
        return self.path / "claims"

    @property
    def times_dir(self) -> Path:
        """What each worker has done when: the actual times beside the plan's."""
        return self.path / "times"

    @property
    def inferred_path(self) -> Path:
        """Written when all responses are there."""
        return self.path / "infer.json"

    @property
    def target_scores_dir(self) -> Path:
        """Scores of each task or group that was asked for, written as soon as it has its responses."""
        return self.path / "scores"

    @property
    def scores_path(self) -> Path:
        return self.path / "scores.json"

    @property
    def failure_path(self) -> Path:
        return self.path / "failure.json"

    @property
    def regressions_path(self) -> Path:
        """How the scores compare with those of the checkpoints before."""
        return self.path / "regressions.json"

    @property
    def left_out_path(self) -> Path:
        """Why there will be no scores, unless a person asks for them."""
        return self.path / "left_out.json"

    def job_dir(self, stage: str) -> Path:
        return self.path / "jobs" / stage

    def export(self) -> ExportRecord | None:
        """The export of the checkpoint that is there; None when there is none, or an earlier one's."""
        record = read_record(self.export_path, ExportRecord)
        return self._current(record) if self.model_dir.is_dir() else None

    def scores(self) -> EvaluationScores | None:
        """The scores of the checkpoint that is there; None when there are none, or an earlier one's."""
        return self._current(read_record(self.scores_path, EvaluationScores))

    def regressions(self) -> RegressionReport | None:
        """What has regressed in the checkpoint that is there; None while nobody has compared it."""
        return self._current(read_record(self.regressions_path, RegressionReport))

    def left_out(self) -> EvaluationLeftOut | None:
        """Whether the checkpoint that is there was left out."""
        return self._current(read_record(self.left_out_path, EvaluationLeftOut))

    def is_unhealthy(self) -> bool:
        """Whether the checkpoint has regressed, and the config or a person wants it passed over."""
        report = self.regressions()
        return report is not None and report.unhealthy

    def _current(self, record: OfCheckpoint | None) -> OfCheckpoint | None:
        """The record, unless its checkpoint was replaced (one that is gone counts on)."""
        identity = self._checkpoint.identity()
        return record if record and identity in (None, record.checkpoint) else None

    @property
    def _checkpoint(self) -> CheckpointDir:
        name = step_folder_name(self.step)
        return CheckpointDir(self.path.parents[1] / "checkpoints" / name, self.step)

    def failure(self) -> EvaluationFailure | None:
        return read_record(self.failure_path, EvaluationFailure)
