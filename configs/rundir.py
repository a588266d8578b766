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

This module knows names and reads records, with configs/run_folders.py and configs/evaluation_dir.py; it needs
neither torch nor Prefect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from configs.evaluation_dir import EvaluationDir
from configs.records import DataManifest
from configs.run_folders import (
    COMMIT_MARKER_NAME,
    AttemptDir,
    CheckpointDir,
    read_record,
    step_folder_name,
    step_of_folder,
    write_record,
)

__all__ = [
    "COMMIT_MARKER_NAME",
    "AttemptDir",
    "CheckpointDir",
    "EvaluationDir",
    "RunDir",
    "read_record",
    "step_folder_name",
    "step_of_folder",
    "write_record",
]

_ATTEMPT_FOLDER = re.compile(r"\d{3,}")


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
