"""The MLflow server (or database), as the follower speaks to it: every call can be repeated.

Runs and models carry the tag `overland.key` and are looked for before they are created; traces have
ids that follow from their keys; a metric whose push is in doubt is asked for first.
Importing this module imports MLflow, which takes about two seconds of CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import mlflow
from mlflow import MlflowClient
from mlflow.entities import (
    Experiment,
    LoggedModelInput,
    LoggedModelOutput,
    Metric,
    Param,
    Run,
    RunTag,
)
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient
from sqlalchemy.exc import SQLAlchemyError

from configs.files import file_lock
from infra.track.errors import TrackingRefusedError, TrackingUnreachableError
from infra.track.points import Point, milliseconds
from infra.track.spans import Span
from infra.track.traces import trace_info, trace_spans
from infra.track.uris import sqlite_path, strip_credentials

KEY_TAG = "overland.key"
_MAX_METRICS = 1000
_MAX_PARAMS_AND_TAGS = 100
_REFUSALS = frozenset(
    {
        "ALREADY_EXISTS",
        "BAD_REQUEST",
        "INVALID_PARAMETER_VALUE",
        "NOT_IMPLEMENTED",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
    }
)

Item = TypeVar("Item")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Errors of MLflow and what is below it, as one sentence without credentials."""
    try:
        yield
    except MlflowException as error:
        refused = error.error_code in _REFUSALS
        kind = TrackingRefusedError if refused else TrackingUnreachableError
        raise kind(f"MLflow cannot {what}: {_first_line(error)}") from error
    except (OSError, SQLAlchemyError) as error:
        raise TrackingUnreachableError(f"MLflow cannot {what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = strip_credentials(str(error)).splitlines() or [type(error).__name__]
    return lines[0][:500]


def _batches(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""Opens MLflow's page of the experiment in its view for training runs, not for chat agents."""


class Server:
    """One tracking URI. Methods raise TrackingUnreachableError or TrackingRefusedError."""

    def __init__(self, uri: str, artifact_location: str | None) -> None:
        self._artifact_location = artifact_location
        with _translated("be opened"):
            database = sqlite_path(uri)
            if database is not None:
                create_database(database)
            mlflow.set_tracking_uri(uri)
            self._client = MlflowClient(tracking_uri=uri)
            self._traces = TracingClient(uri)

    # --- experiment and runs ----------------------------------------------------------------------

    def experiment(self, name: str) -> str:
        """Id of the experiment, created when there is none."""
        with _translated(f"open experiment {name!r}"):
            found = self._client.get_experiment_by_name(name) or self._create_experiment(name)
        if found.lifecycle_stage != "active":
            raise TrackingRefusedError(
                f"experiment {name!r} was deleted in MLflow: restore it there, or name another "
                "with tracking.experiment"
            )
        return str(found.experiment_id)

    def _create_experiment(self, name: str) -> Experiment:
        try:
            self._client.create_experiment(
                name, artifact_location=self._artifact_location, tags=EXPERIMENT_TAGS
            )
        except MlflowException as error:
            # Another run's follower may have been faster.
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            raise TrackingUnreachableError(
                f"MLflow lost experiment {name!r} just after creating it"
            )
        return experiment

    def is_active(self, run_id: str) -> bool:
        """Whether the run exists and is not deleted."""
        try:
            with _translated("find the run"):
                return bool(self._client.get_run(run_id).info.lifecycle_stage == "active")
        except TrackingRefusedError:
            return False

    def run(
        self,
        experiment_id: str,
        key: str,
        name: str,
        start_time: float,
        *,
        parent_run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> tuple[str, bool]:
        """(id of the run with this key, whether it was created just now)."""
        with _translated(f"create run {name!r}"):
            found = self._client.search_runs(
                [experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1
            )
            if found:
                return str(found[0].info.run_id), False
            all_tags = {KEY_TAG: key, "mlflow.source.name": "overland", **(tags or {})}
            if parent_run_id is not None:
                all_tags["mlflow.parentRunId"] = parent_run_id
            run: Run = self._client.create_run(
                experiment_id, milliseconds(start_time), all_tags, run_name=name
            )
            return str(run.info.run_id), True

    def end_run(self, run_id: str, status: str, end_time: float) -> None:
        """Give the run its final status: FINISHED, FAILED or KILLED."""
        with _translated("end a run"):
            self._client.set_terminated(run_id, status, milliseconds(end_time))

    def reopen_run(self, run_id: str) -> None:
        """The run goes on after all."""
        with _translated("reopen a run"):
            self._client.update_run(run_id, status="RUNNING")

    # --- what a run holds -------------------------------------------------------------------------

    def history(self, run_id: str, key: str) -> set[tuple[int, int]]:
        """(step, timestamp in ms) of each point of a metric that the run holds."""
        with _translated("read metrics"):
            history = self._client.get_metric_history(run_id, key)
        return {(metric.step, metric.timestamp) for metric in history}

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        with _translated("log metrics"):
            for batch in _batches(points, _MAX_METRICS):
                metrics = [
                    Metric(p.key, p.value, p.timestamp_ms, p.step, p.model_id, run_id=run_id)
                    for p in batch
                ]
                self._client.log_batch(run_id, metrics=metrics)

    def changed(self, run_id: str, points: Sequence[Point]) -> list[Point]:
        """Those of `points` whose value is not the run's latest for that metric."""
        with _translated("read metrics"):
            latest = self._client.get_run(run_id).data.metrics
        return [point for point in points if latest.get(point.key) != point.value]

    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Log parameters; one that the run has already stays as it is (MLflow allows no change)."""
        with _translated("log parameters"):
            known = self._client.get_run(run_id).data.params
            fresh = [Param(key, value) for key, value in params.items() if key not in known]
            for batch in _batches(fresh, _MAX_PARAMS_AND_TAGS):
                self._client.log_batch(run_id, params=batch)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        with _translated("set tags"):
            for batch in _batches([RunTag(k, v) for k, v in tags.items()], _MAX_PARAMS_AND_TAGS):
                self._client.log_batch(run_id, tags=batch)

    def log_text(self, run_id: str, name: str, text: str) -> None:
        """Store `text`, without credentials, as the artifact `name`."""
        with _translated(f"store {name}"):
            self._client.log_text(run_id, strip_credentials(text), name)

    # --- models -----------------------------------------------------------------------------------

    def model(
        self,
        experiment_id: str,
        key: str,
        name: str,
        run_id: str,
        *,
        step: int,
        params: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> str:
        """Id of the model with this key: READY, an output of `run_id`, weights outside of MLflow."""
        with _translated(f"create model {name!r}"):
            found = self._client.search_logged_models(
                [experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1
            )
            if found:
                model_id = str(found[0].model_id)
                if found[0].status != "READY":
                    self._client.finalize_logged_model(model_id, "READY")
            else:
                created = mlflow.create_external_model(
                    name,
                    source_run_id=run_id,
                    params=dict(params),
                    tags={KEY_TAG: key, **tags},
                    model_type="checkpoint",
                    experiment_id=experiment_id,
                )
                model_id = str(created.model_id)
            outputs = self._client.get_run(run_id).outputs
            given = outputs.model_outputs if outputs else []
            if model_id not in {output.model_id for output in given}:
                self._client.log_outputs(run_id, [LoggedModelOutput(model_id, step)])
            return model_id

    def take_model(self, run_id: str, model_id: str) -> None:
        """Name the model as an input of the run."""
        with _translated("link a model"):
            inputs = self._client.get_run(run_id).inputs
            taken = inputs.model_inputs if inputs else []
            if model_id not in {model.model_id for model in taken}:
                self._client.log_inputs(run_id, models=[LoggedModelInput(model_id)])

    def set_model_tags(self, model_id: str, tags: Mapping[str, str]) -> None:
        with _translated("set tags of a model"):
            self._client.set_logged_model_tags(model_id, dict(tags))

    # --- traces -----------------------------------------------------------------------------------

    def log_trace(
        self, experiment_id: str, key: str, root: Span, run_id: str, model_id: str | None = None
    ) -> None:
        """Store the tree of spans; told again, the same trace is brought up to date."""
        spans = trace_spans(root, key)
        info = trace_info(root, key, experiment_id, {KEY_TAG: key}, run_id, model_id)
        with _translated("store a trace"):
            self._traces.log_spans(experiment_id, spans)
            self._traces.start_trace(info)


def create_database(path: Path) -> None:
    """Create MLflow's SQLite file, whole or not at all.

    MLflow cannot repair a schema whose creation was interrupted, and two processes must not create
    it together: so it is made beside, under a lock, and renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return
        temporary = path.with_name(f".{path.name}.new")
        temporary.unlink(missing_ok=True)
        MlflowClient(tracking_uri=f"sqlite:///{temporary}").get_experiment_by_name("none")
        temporary.replace(path)
