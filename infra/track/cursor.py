"""What MLflow has been told so far: tracking/state.json, and what is still missing.

The follower is the only writer. Everything here can be lost without harm: deleting tracking/ makes
the follower tell the whole story again, into a new MLflow run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from configs.files import read_json_lines, write_text
from configs.rundir import (
    COMMIT_MARKER_NAME,
    AttemptDir,
    CheckpointDir,
    EvaluationDir,
    RunDir,
    step_of_folder,
)
from infra.track.uris import strip_credentials

STATE_NAME = "state.json"


class AttemptCursor(BaseModel):
    """How far one attempt has been told."""

    run_id: str
    offset_bytes: int = 0
    """Of events.jsonl."""
    files: str = ""
    """Signature of the attempt's records."""


class CheckpointCursor(BaseModel):
    """The LoggedModel of one checkpoint."""

    model_id: str
    files: str


class EvaluationCursor(BaseModel):
    """The MLflow run of one evaluation."""

    run_id: str
    files: str = ""


class Cursor(BaseModel):
    """Ids of what exists in MLflow, and how far each source file has been told."""

    key: str
    """Names this run directory in MLflow's tags, so that nothing is created twice."""
    run_dir: str
    tracking_uri: str
    """Without credentials."""
    experiment: str
    experiment_id: str | None = None
    mlflow_run_id: str | None = None
    """The parent run."""
    ended: bool = False
    """The parent run has an end in MLflow."""
    files: dict[str, str] = {}
    """Signatures of config.yaml, manifest.json and summary.json."""
    attempts: dict[int, AttemptCursor] = {}
    checkpoints: dict[int, CheckpointCursor] = {}
    evaluations: dict[int, EvaluationCursor] = {}
    highest_step: dict[str, int] = {}
    """Metric -> last step on the parent run's effective curve."""
    unconfirmed: list[str] = []
    """MLflow runs that may hold more metrics than the offsets say: a push to them was begun."""
    last_error: str = ""

    def save(self, run: RunDir) -> None:
        write_text(_path(run), self.model_dump_json(indent=2) + "\n")


def _path(run: RunDir) -> Path:
    return run.tracking_dir / STATE_NAME


def load_cursor(run: RunDir) -> Cursor | None:
    """The saved cursor; None when there is none that can be read."""
    try:
        return Cursor.model_validate_json(_path(run).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def open_cursor(run: RunDir, tracking_uri: str, experiment: str) -> Cursor:
    """The saved cursor, if it is about this directory, server and experiment; else a fresh one.

    A copied or moved directory is another run in MLflow: two directories never write to one run.
    """
    saved = load_cursor(run)
    fresh = fresh_cursor(run, tracking_uri, experiment)
    if saved is None or saved.run_dir != fresh.run_dir:
        return fresh
    if (saved.tracking_uri, saved.experiment) == (fresh.tracking_uri, fresh.experiment):
        return saved
    return fresh.model_copy(update={"key": saved.key})


def fresh_cursor(run: RunDir, tracking_uri: str, experiment: str) -> Cursor:
    """A cursor that knows of nothing, under a new key."""
    return Cursor(
        key=uuid.uuid4().hex,
        run_dir=str(run.path.absolute()),
        tracking_uri=strip_credentials(tracking_uri),
        experiment=experiment,
    )


# --- the source files -----------------------------------------------------------------------------


def signature(paths: Iterable[Path]) -> str:
    """Changes when one of the files appears or is written; empty when there is none of them."""
    return " ".join(_file_signature(path) for path in paths).strip()


def _file_signature(path: Path) -> str:
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    return f"{path.name}:{status.st_mtime_ns}:{status.st_size}"


def attempt_signature(attempt: AttemptDir) -> str:
    return signature((attempt.record_path, attempt.verdict_path, attempt.action_path))


def evaluation_signature(evaluation: EvaluationDir) -> str:
    return signature((evaluation.scores_path, evaluation.failure_path, evaluation.regressions_path))


def checkpoint_signature(checkpoint: CheckpointDir) -> str:
    return signature([checkpoint.path / COMMIT_MARKER_NAME])


def checkpoint_dirs(run: RunDir) -> list[CheckpointDir]:
    """All checkpoint folders in order of steps, without opening (large) commit markers."""
    folders = run.checkpoints_dir.iterdir() if run.checkpoints_dir.is_dir() else iter(())
    steps = sorted(step for f in folders if (step := step_of_folder(f)) is not None)
    return [run.checkpoint(step) for step in steps]


# --- what is missing ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backlog:
    """What MLflow has not been told yet."""

    events: int
    records: int


def backlog(run: RunDir, cursor: Cursor | None) -> Backlog:
    """Compare the run directory with the cursor; asks no server."""
    known = cursor.attempts if cursor else {}
    events = 0
    for attempt in run.attempts():
        offset = known[attempt.number].offset_bytes if attempt.number in known else 0
        events += sum(1 for _ in read_json_lines(attempt.events_path, offset))
    return Backlog(events, sum(now not in ("", told) for now, told in _signatures(run, cursor)))


def _signatures(run: RunDir, cursor: Cursor | None) -> Iterator[tuple[str, str]]:
    """(signature now, signature told) of each record."""
    attempts = cursor.attempts if cursor else {}
    checkpoints = cursor.checkpoints if cursor else {}
    evaluations = cursor.evaluations if cursor else {}
    for path in (run.config_path, run.manifest_path, run.summary_path):
        yield signature([path]), cursor.files.get(path.name, "") if cursor else ""
    for attempt in run.attempts():
        told_attempt = attempts.get(attempt.number)
        yield attempt_signature(attempt), told_attempt.files if told_attempt else ""
    for checkpoint in checkpoint_dirs(run):
        told_model = checkpoints.get(checkpoint.step)
        yield checkpoint_signature(checkpoint), told_model.files if told_model else ""
    for evaluation in run.evaluations():
        told_scores = evaluations.get(evaluation.step)
        yield evaluation_signature(evaluation), told_scores.files if told_scores else ""
