"""The run directory: the only truth about a run; Prefect and MLflow are views of it.

    runs/NAME/
      config.yaml                    resolved config
      locks/                         one file a stage, locked by the live flow; names it
      data/                          manifest.json, tokenizer/, train.bin/.idx, validation.bin/.idx, evaluation/
      checkpoints/step_00000200/     megatron-core's distributed format; COMMITTED.json written last
      attempts/001/                  config.json, attempt.json, job/, rank_00000.log, events.jsonl, verdict.json, action.json
      evaluations/step_00000200/     model/, tasks/, plan.json, responses/, scores.json, jobs/
      tracking/                      what MLflow has been told so far
      flow.log                       what the flows said
      summary.json                   the last result that `overland run` printed

This module knows names and reads records; it needs neither torch nor Prefect.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from configs.events import Event, event_adapter
from configs.files import read_json_lines, remembered_sha256, write_text
from configs.records import (
    Action,
    AttemptRecord,
    CommitMarker,
    DataManifest,
    EvaluationFailure,
    EvaluationScores,
    ExportRecord,
    Record,
    Verdict,
)
from configs.stacks import STACKS_FOLDER

COMMIT_MARKER_NAME = "COMMITTED.json"
_STEP_FOLDER = re.compile(r"step_(\d{8,})")
_ATTEMPT_FOLDER = re.compile(r"\d{3,}")

RecordType = TypeVar("RecordType", bound=Record)
OfCheckpoint = TypeVar("OfCheckpoint", ExportRecord, EvaluationScores)


def read_record(path: Path, record_type: type[RecordType]) -> RecordType | None:
    """Read a record; None when the file is absent or is not such a record."""
    try:
        return record_type.model_validate_json(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError, ValidationError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Write a record durably."""
    write_text(path, record.model_dump_json(indent=2) + "\n")


def step_folder_name(step: int) -> str:
    """Folder name of a checkpoint or evaluation."""
    return f"step_{step:08d}"


def step_of_folder(path: Path) -> int | None:
    """Step of a checkpoint's or evaluation's folder; None for any other name."""
    match = _STEP_FOLDER.fullmatch(path.name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class CheckpointDir:
    """One checkpoint's folder."""

    path: Path
    step: int

    def is_committed(self) -> bool:
        """Whether the commit marker is there."""
        return (self.path / COMMIT_MARKER_NAME).is_file()

    def marker(self) -> CommitMarker | None:
        """The commit marker; None when the checkpoint is not committed."""
        return read_record(self.path / COMMIT_MARKER_NAME, CommitMarker)

    def identity(self) -> str | None:
        """SHA-256 of the commit marker, another one when the step is saved again; None without."""
        with suppress(FileNotFoundError):
            return remembered_sha256(self.path / COMMIT_MARKER_NAME)
        return None


@dataclass(frozen=True)
class AttemptDir:
    """One attempt's folder."""

    path: Path
    number: int

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def record_path(self) -> Path:
        return self.path / "attempt.json"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def verdict_path(self) -> Path:
        return self.path / "verdict.json"

    @property
    def action_path(self) -> Path:
        return self.path / "action.json"

    @property
    def token_path(self) -> Path:
        """What this attempt's snapshots in node memory are marked with."""
        return self.path / "snapshot_token"

    @property
    def job_dir(self) -> Path:
        """The launcher's own files: job.json, launcher.log."""
        return self.path / "job"

    @property
    def stacks_dir(self) -> Path:
        """Stacks of the job's processes, one JSON file each, taken when it hung."""
        return self.job_dir / STACKS_FOLDER

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank_{rank:05d}.log"

    def record(self) -> AttemptRecord | None:
        return read_record(self.record_path, AttemptRecord)

    def verdict(self) -> Verdict | None:
        return read_record(self.verdict_path, Verdict)

    def action(self) -> Action | None:
        return read_record(self.action_path, Action)

    def events(self) -> list[Event]:
        """All whole events so far."""
        return self.events_from(0)[0]

    def events_from(self, offset_bytes: int) -> tuple[list[Event], int]:
        """Whole events from `offset_bytes` on, and the offset after them.

        Lines that are no event (torn by a crash) are left out.
        """
        events: list[Event] = []
        end_bytes = offset_bytes
        for value, end_bytes in read_json_lines(self.events_path, offset_bytes):  # noqa: B007
            with suppress(ValidationError):
                events.append(event_adapter.validate_python(value))
        return events, end_bytes


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

    def job_dir(self, stage: str) -> Path:
        return self.path / "jobs" / stage

    def export(self) -> ExportRecord | None:
        """The export of the checkpoint that is there; None when there is none, or an earlier one's."""
        record = read_record(self.export_path, ExportRecord)
        return self._current(record) if self.model_dir.is_dir() else None

    def scores(self) -> EvaluationScores | None:
        """The scores of the checkpoint that is there; None when there are none, or an earlier one's."""
        return self._current(read_record(self.scores_path, EvaluationScores))

    def _current(self, record: OfCheckpoint | None) -> OfCheckpoint | None:
        """The record, unless its checkpoint was replaced (one that is gone counts on)."""
        identity = RunDir(self.path.parents[1]).checkpoint(self.step).identity()
        return record if record and identity in (None, record.checkpoint) else None

    def failure(self) -> EvaluationFailure | None:
        return read_record(self.failure_path, EvaluationFailure)


@dataclass(frozen=True)
class RunDir:
    """Names of everything in one run directory. Creates nothing by itself."""

    path: Path

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def locks_dir(self) -> Path:
        return self.path / "locks"

    @property
    def summary_path(self) -> Path:
        return self.path / "summary.json"

    @property
    def data_dir(self) -> Path:
        return self.path / "data"

    @property
    def manifest_path(self) -> Path:
        return self.data_dir / "manifest.json"

    @property
    def tokenizer_dir(self) -> Path:
        return self.data_dir / "tokenizer"

    @property
    def heldout_dir(self) -> Path:
        """JSONL documents of the held-out evaluation tasks."""
        return self.data_dir / "evaluation"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def attempts_dir(self) -> Path:
        return self.path / "attempts"

    @property
    def evaluations_dir(self) -> Path:
        return self.path / "evaluations"

    @property
    def stop_path(self) -> Path:
        """A file that a person creates to have training save and stop; removed by the next start."""
        return self.path / "STOP"

    @property
    def tracking_dir(self) -> Path:
        return self.path / "tracking"

    def manifest(self) -> DataManifest | None:
        return read_record(self.manifest_path, DataManifest)

    def attempt(self, number: int) -> AttemptDir:
        return AttemptDir(self.attempts_dir / f"{number:03d}", number)

    def attempts(self) -> list[AttemptDir]:
        """Attempts so far, in order."""
        folders = self.attempts_dir.iterdir() if self.attempts_dir.is_dir() else iter(())
        numbers = sorted(int(f.name) for f in folders if _ATTEMPT_FOLDER.fullmatch(f.name))
        return [self.attempt(number) for number in numbers]

    def checkpoint(self, step: int) -> CheckpointDir:
        return CheckpointDir(self.checkpoints_dir / step_folder_name(step), step)

    def committed_checkpoints(self) -> list[CheckpointDir]:
        """Checkpoints with a commit marker (which is not opened: it may be long), in order of steps."""
        folders = self.checkpoints_dir.iterdir() if self.checkpoints_dir.is_dir() else iter(())
        steps = sorted(step for f in folders if (step := step_of_folder(f)) is not None)
        checkpoints = [self.checkpoint(step) for step in steps]
        return [c for c in checkpoints if c.is_committed()]

    def evaluation(self, step: int) -> EvaluationDir:
        return EvaluationDir(self.evaluations_dir / step_folder_name(step), step)

    def evaluations(self) -> list[EvaluationDir]:
        """Evaluations begun so far, in order of steps."""
        folders = self.evaluations_dir.iterdir() if self.evaluations_dir.is_dir() else iter(())
        steps = sorted(step for f in folders if (step := step_of_folder(f)) is not None)
        return [self.evaluation(step) for step in steps]
