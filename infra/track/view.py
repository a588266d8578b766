"""One pass over a run directory: whatever is new in it is told to MLflow.

    parent run      config as parameters; config.yaml, manifest.json, summary.json; the effective
                    loss curve with scores beside it; goodput at the end
      attempt runs      step metrics; verdict and action as tags and files; end of the launcher's log
      evaluation runs   scores, tied to the model
    models          one LoggedModel per committed checkpoint, with its scores
    traces          one per ended attempt, one per finished evaluation

The cursor is saved after each thing told, so a pass can die anywhere and the next goes on there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs import plain_yaml
from configs.files import read_json_lines
from configs.records import AttemptRecord, EvaluationFailure, EvaluationScores, Event, event_adapter
from configs.rundir import AttemptDir, CheckpointDir, EvaluationDir, RunDir, step_folder_name
from infra.track import points as convert
from infra.track import spans
from infra.track.cursor import (
    AttemptCursor,
    CheckpointCursor,
    Cursor,
    EvaluationCursor,
    attempt_signature,
    checkpoint_dirs,
    checkpoint_signature,
    evaluation_signature,
    run_files,
    signature,
)
from infra.track.points import Point
from infra.track.server import Server, TrackingRefusedError

_EVENTS_PER_PUSH = 150
"""About 1000 metrics, MLflow's limit for one request."""
_LOG_TAIL_BYTES = 64 * 1024
_FAILURE_TAGS = ("overland.failed_stage", "overland.reason")
_RUN_STATUS = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


class View:
    """A run directory, MLflow's view of it, and the cursor between them."""

    def __init__(
        self, run: RunDir, server: Server, cursor: Cursor, tags: Mapping[str, str]
    ) -> None:
        self._run = run
        self._server = server
        self._cursor = cursor
        self._tags = tags
        self._refusals: list[str] = []
        self._held: dict[tuple[str, str], set[tuple[int, int]]] = {}

    def update(self, *, events: bool = True, summary: bool = True) -> list[str]:
        """Tell MLflow what is new; returns what it refused, a sentence each.

        Without `events`, events wait until the attempt they belong to changes otherwise; without
        `summary`, summary.json waits: it gives the parent run its end, and may be an earlier flow's.
        Raises TrackingUnreachableError when MLflow does not answer: call again later.
        """
        self._refusals, self._held = [], {}
        if not self._run.config_path.is_file():
            return []
        self._open_parent()
        for name, path in run_files(self._run).items():
            if summary or path != self._run.summary_path:
                self._tell_file(name, path)
        for attempt in self._run.attempts():
            with self._refusal_noted():
                self._tell_attempt(attempt, events=events)
        for checkpoint in checkpoint_dirs(self._run):
            with self._refusal_noted():
                self._tell_checkpoint(checkpoint)
        for evaluation in self._run.evaluations():
            with self._refusal_noted():
                self._tell_evaluation(evaluation)
        if events and not self._refusals and self._cursor.unconfirmed:
            self._cursor.unconfirmed = []
            self._save()
        return self._refusals

    @contextmanager
    def _refusal_noted(self) -> Iterator[None]:
        """One thing that MLflow refuses does not keep it from the others."""
        try:
            yield
        except TrackingRefusedError as error:
            self._refusals.append(str(error))

    def _save(self) -> None:
        self._cursor.save(self._run)

    # --- the parent run ---------------------------------------------------------------------------

    def reopen(self) -> None:
        """A flow goes on with the run: its end in MLflow was none."""
        if self._cursor.mlflow_run_id is not None and self._cursor.ended:
            self._server.reopen_run(self._cursor.mlflow_run_id)
            self._cursor.ended = False
            self._save()

    def end_without_summary(self, time: float, *, status: str) -> None:
        """The flow is gone, and no summary gave the parent run its end."""
        if self._cursor.mlflow_run_id is not None and not self._cursor.ended:
            self._server.end_run(self._cursor.mlflow_run_id, status, time)
            self._cursor.ended = True
            self._save()

    @property
    def _parent(self) -> str:
        if self._cursor.mlflow_run_id is None:
            raise AssertionError("the parent run is opened first")
        return self._cursor.mlflow_run_id

    @property
    def _experiment(self) -> str:
        if self._cursor.experiment_id is None:
            raise AssertionError("the experiment is opened first")
        return self._cursor.experiment_id

    def _open_parent(self) -> None:
        cursor = self._cursor
        if cursor.mlflow_run_id is not None:
            return
        self._save()  # The key, before anything is created with it.
        cursor.experiment_id = self._server.experiment(cursor.experiment)
        name = str(self._config().get("name") or self._run.path.name)
        tags = {"overland.run_dir": cursor.run_dir, **self._tags}
        cursor.mlflow_run_id = self._open_run("", name, self._started_at(), None, tags)
        self._save()

    def _open_run(
        self, path: str, name: str, start: float, parent: str | None, tags: Mapping[str, str]
    ) -> str:
        run_id, created = self._server.run(
            self._experiment,
            self._key(path),
            name,
            start,
            parent_run_id=parent,
            tags={name: convert.clean(value) for name, value in tags.items()},
        )
        if not created:
            self._cursor.unconfirmed.append(run_id)
        return run_id

    def _key(self, path: str) -> str:
        return f"{self._cursor.key}/{path}".rstrip("/")

    def _config(self) -> dict[str, Any]:
        values = plain_yaml.parse(self._run.config_path.read_text(encoding="utf-8"))
        return values if isinstance(values, dict) else {}

    def _started_at(self) -> float:
        """When the run began, as far as its files tell."""
        times = [self._run.config_path.stat().st_mtime]
        if (manifest := self._run.manifest()) is not None:
            times.append(manifest.created_at - manifest.duration_s)
        times += [r.submitted_at for a in self._run.attempts() if (r := a.record()) is not None]
        return min(times)

    def _tell_file(self, name: str, path: Path) -> None:
        now = signature([path])
        if now in ("", self._cursor.files.get(name)):
            return
        with self._refusal_noted():
            text = path.read_text(encoding="utf-8")
            if path == self._run.config_path:
                self._server.log_params(self._parent, convert.config_params(self._config()))
            elif path == self._run.summary_path:
                self._tell_summary(json.loads(text), path.stat().st_mtime)
            self._server.log_text(self._parent, name, text)
            self._cursor.files[name] = now
            self._save()

    def _tell_summary(self, summary: dict[str, Any], time: float) -> None:
        wanted = convert.summary_points(summary, time)
        self._server.log_points(self._parent, self._server.changed(self._parent, wanted))
        status = str(summary.get("status"))
        self._server.set_tags(self._parent, {"overland.status": convert.clean(status)})
        self._server.end_run(self._parent, _RUN_STATUS.get(status, "FAILED"), time)
        self._cursor.ended = True

    # --- attempts ---------------------------------------------------------------------------------

    def _tell_attempt(self, attempt: AttemptDir, *, events: bool) -> None:
        now = attempt_signature(attempt)
        told = self._cursor.attempts.get(attempt.number)
        if told is None:
            record = attempt.record()
            if record is None:
                return
            told = self._open_attempt(attempt, record)
        if events or now != told.files:
            self._tell_events(attempt, told)
        if now != told.files:
            record = attempt.record()
            if record is not None:
                self._tell_attempt_records(attempt, record, told.run_id)
            told.files = now
            self._save()

    def _open_attempt(self, attempt: AttemptDir, record: AttemptRecord) -> AttemptCursor:
        run_id = self._open_run(
            f"attempts/{attempt.number:03d}",
            f"attempt {attempt.number:03d}",
            record.submitted_at,
            self._parent,
            {"overland.kind": "attempt", "overland.attempt": str(attempt.number)},
        )
        told = AttemptCursor(run_id=run_id)
        self._cursor.attempts[attempt.number] = told
        self._save()
        return told

    def _tell_events(self, attempt: AttemptDir, told: AttemptCursor) -> None:
        for events, offset_bytes in _events_from(attempt.events_path, told.offset_bytes):
            points = [point for event in events for point in convert.points_of_event(event)]
            highest_step = dict(self._cursor.highest_step)
            effective = convert.effective_points(points, highest_step)
            self._push({told.run_id: points, self._parent: effective})
            told.offset_bytes = offset_bytes
            self._cursor.highest_step = highest_step
            self._save()

    def _push(self, batch: Mapping[str, list[Point]]) -> None:
        """Log each run's points exactly once; the caller saves the cursor with what follows.

        The runs are noted before the push. Where a note is found later, a push was begun and its
        end is unknown (a crash, a time-out): then MLflow is asked what it holds.
        """
        batch = {run_id: points for run_id, points in batch.items() if points}
        if not batch:
            return
        doubtful = set(self._cursor.unconfirmed)
        self._cursor.unconfirmed = sorted(doubtful | set(batch))
        self._save()
        for run_id, points in batch.items():
            if run_id in doubtful:
                points = [point for point in points if not self._holds(run_id, point)]
            self._server.log_points(run_id, points)
        self._cursor.unconfirmed = sorted(doubtful)

    def _holds(self, run_id: str, point: Point) -> bool:
        """Whether MLflow has the point; asks once a pass for each metric."""
        history = self._held.get((run_id, point.key))
        if history is None:
            history = self._server.history(run_id, point.key)
            self._held[run_id, point.key] = history
        return (point.step, point.timestamp_ms) in history

    def _tell_attempt_records(
        self, attempt: AttemptDir, record: AttemptRecord, run_id: str
    ) -> None:
        verdict, action = attempt.verdict(), attempt.action()
        self._server.set_tags(run_id, convert.attempt_tags(record, verdict, action))
        if record.outcome is None:
            return
        for path in (attempt.verdict_path, attempt.action_path):
            if path.is_file():
                self._server.log_text(run_id, path.name, path.read_text(encoding="utf-8"))
        log = attempt.job_dir / "launcher.log"
        if log.is_file():
            self._server.log_text(run_id, log.name, _tail(log))
        root = spans.attempt_span(record, attempt.events(), verdict, action)
        key = self._key(f"attempts/{attempt.number:03d}")
        self._server.log_trace(self._experiment, key, root, run_id)
        end = record.ended_at or root.end
        self._server.end_run(run_id, _RUN_STATUS[record.outcome], end)

    # --- checkpoints ------------------------------------------------------------------------------

    def _tell_checkpoint(self, checkpoint: CheckpointDir) -> None:
        now = checkpoint_signature(checkpoint)
        told = self._cursor.checkpoints.get(checkpoint.step)
        if now in ("", told.files if told else ""):
            return
        marker = checkpoint.marker()
        if marker is None:
            return
        attempt = self._cursor.attempts.get(marker.attempt)
        name = step_folder_name(checkpoint.step)
        sizes = {key: str(value) for key, value in marker.parallel.items()}
        model_id = self._server.model(
            self._experiment,
            self._key(f"checkpoints/{name}/{marker.attempt:03d}"),
            name,
            attempt.run_id if attempt else self._parent,
            step=checkpoint.step,
            params={"step": str(marker.step), "attempt": str(marker.attempt), **sizes},
            tags={
                "overland.checkpoint": convert.clean(checkpoint.path),
                "overland.run": self._parent,
                "overland.step": str(marker.step),
                "overland.size_bytes": str(marker.size_bytes),
                "overland.consumed_samples": str(marker.consumed_samples),
                "overland.model_fingerprint": marker.model_fingerprint,
            },
        )
        self._cursor.checkpoints[checkpoint.step] = CheckpointCursor(model_id=model_id, files=now)
        self._save()

    # --- evaluations ------------------------------------------------------------------------------

    def _tell_evaluation(self, evaluation: EvaluationDir) -> None:
        now = evaluation_signature(evaluation)
        told = self._cursor.evaluations.get(evaluation.step)
        if now in ("", told.files if told else ""):
            return
        scores, failure = evaluation.scores(), evaluation.failure()
        if scores is None and failure is None:
            return
        if told is None:
            told = self._open_evaluation(evaluation, scores, failure)
        elif scores is not None:
            self._server.set_tags(told.run_id, dict.fromkeys(_FAILURE_TAGS, ""))
        if scores is not None:
            self._tell_scores(scores, told)
        elif failure is not None:
            self._tell_failure(failure, told)
        told.files = now
        self._save()

    def _open_evaluation(
        self,
        evaluation: EvaluationDir,
        scores: EvaluationScores | None,
        failure: EvaluationFailure | None,
    ) -> EvaluationCursor:
        start = scores.started_at if scores else failure.failed_at if failure else 0.0
        name = f"evaluation step {evaluation.step}"
        tags = {"overland.kind": "evaluation", "overland.step": str(evaluation.step)}
        path = f"evaluations/{step_folder_name(evaluation.step)}"
        told = EvaluationCursor(run_id=self._open_run(path, name, start, self._parent, tags))
        self._cursor.evaluations[evaluation.step] = told
        self._save()
        return told

    def _tell_scores(self, scores: EvaluationScores, told: EvaluationCursor) -> None:
        model = self._cursor.checkpoints.get(scores.step)
        model_id = model.model_id if model else None
        if model_id is not None:
            self._server.take_model(told.run_id, model_id)
        tasks = convert.clean(",".join(scores.tasks))
        params = {"step": str(scores.step), "tasks": tasks, "plan_sha256": scores.plan_sha256}
        self._server.log_params(told.run_id, params)
        points = self._server.changed(told.run_id, convert.score_points(scores, model_id))
        curve = [
            Point(point.key, point.value, point.time, point.step)
            for point in points
            if not point.key.endswith("_stderr")
        ]
        self._push({self._parent: curve, told.run_id: points})
        key = self._key(f"evaluations/{step_folder_name(scores.step)}")
        root = spans.evaluation_span(scores)
        self._server.log_trace(self._experiment, key, root, told.run_id, model_id)
        self._server.end_run(told.run_id, "FINISHED", scores.ended_at)

    def _tell_failure(self, failure: EvaluationFailure, told: EvaluationCursor) -> None:
        values = (convert.clean(failure.stage), convert.clean(failure.reason))
        self._server.set_tags(told.run_id, dict(zip(_FAILURE_TAGS, values, strict=True)))
        self._server.end_run(told.run_id, "FAILED", failure.failed_at)


def _events_from(path: Path, offset_bytes: int) -> Iterator[tuple[list[Event], int]]:
    """(events, offset after them), some at a time; lines that are no event are passed over."""
    events: list[Event] = []
    end = offset_bytes
    for value, end in read_json_lines(path, offset_bytes):
        try:
            events.append(event_adapter.validate_python(value))
        except ValidationError:
            continue
        if len(events) == _EVENTS_PER_PUSH:
            yield events, end
            events = []
    if end > offset_bytes:
        yield events, end


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace")
