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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs import plain_yaml
from configs.rundir import RunDir
from infra.track.attempts import tell_attempt
from infra.track.checkpoints import tell_checkpoint, tell_evaluation
from infra.track.cursor import Cursor, checkpoint_dirs, signature
from infra.track.errors import TrackingRefusedError
from infra.track.points import clean, config_params, summary_points
from infra.track.server import Server
from infra.track.telling import RUN_STATUS, Telling


class View:
    """A run directory, MLflow's view of it, and the cursor between them."""

    def __init__(
        self, run: RunDir, server: Server, cursor: Cursor, tags: Mapping[str, str]
    ) -> None:
        self._run = run
        self._server = server
        self._cursor = cursor
        self._tags = tags
        self._telling = Telling(run, server, cursor)
        self._refusals: list[str] = []

    def update(self, *, events: bool = True, summary: bool = True) -> list[str]:
        """Tell MLflow what is new; returns what it refused, a sentence each.

        Without `events`, events wait until the attempt they belong to changes otherwise; without
        `summary`, summary.json waits: it gives the parent run its end, and may be an earlier flow's.
        Raises TrackingUnreachableError when MLflow does not answer: call again later.
        """
        self._refusals = []
        self._telling.begin_pass()
        if not self._run.config_path.is_file():
            return []
        self._open_parent()
        for path in (self._run.config_path, self._run.manifest_path):
            self._tell_file(path)
        for attempt in self._run.attempts():
            with self._refusal_noted():
                tell_attempt(self._telling, attempt, events=events)
        for checkpoint in checkpoint_dirs(self._run):
            with self._refusal_noted():
                tell_checkpoint(self._telling, checkpoint)
        for evaluation in self._run.evaluations():
            with self._refusal_noted():
                tell_evaluation(self._telling, evaluation)
        if summary:
            self._tell_file(self._run.summary_path)
        if events and not self._refusals:
            self._telling.end_pass()
        return self._refusals

    @contextmanager
    def _refusal_noted(self) -> Iterator[None]:
        """One thing that MLflow refuses does not keep it from the others."""
        try:
            yield
        except TrackingRefusedError as error:
            self._refusals.append(str(error))

    # --- the parent run ---------------------------------------------------------------------------

    def reopen(self) -> None:
        """A flow goes on with the run: its end in MLflow was none."""
        if self._cursor.mlflow_run_id is not None and self._cursor.ended:
            self._server.reopen_run(self._cursor.mlflow_run_id)
            self._cursor.ended = False
            self._telling.save()

    def end_without_summary(self, time: float, *, status: str) -> None:
        """The flow is gone, and no summary gave the parent run its end."""
        if self._cursor.mlflow_run_id is not None and not self._cursor.ended:
            self._server.end_run(self._cursor.mlflow_run_id, status, time)
            self._cursor.ended = True
            self._telling.save()

    def _open_parent(self) -> None:
        cursor = self._cursor
        if cursor.mlflow_run_id is not None:
            return
        self._telling.save()  # The key, before anything is created with it.
        cursor.experiment_id = self._server.experiment(cursor.experiment)
        name = str(self._config().get("name") or self._run.path.name)
        tags = {"overland.run_dir": cursor.run_dir, **self._tags}
        cursor.mlflow_run_id = self._telling.open_run("", name, self._started_at(), None, tags)
        self._telling.save()

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

    def _tell_file(self, path: Path) -> None:
        now = signature([path])
        if now in ("", self._cursor.files.get(path.name)):
            return
        with self._refusal_noted():
            text = path.read_text(encoding="utf-8")
            if path == self._run.config_path:
                self._server.log_params(self._telling.parent, config_params(self._config()))
            elif path == self._run.summary_path:
                self._tell_summary(json.loads(text), path.stat().st_mtime)
            self._server.log_text(self._telling.parent, path.name, text)
            self._cursor.files[path.name] = now
            self._telling.save()

    def _tell_summary(self, summary: dict[str, Any], time: float) -> None:
        wanted = summary_points(summary, time)
        self._server.log_points(
            self._telling.parent, self._server.changed(self._telling.parent, wanted)
        )
        status = str(summary.get("status"))
        self._server.set_tags(self._telling.parent, {"overland.status": clean(status)})
        self._server.end_run(self._telling.parent, RUN_STATUS.get(status, "FAILED"), time)
        self._cursor.ended = True
