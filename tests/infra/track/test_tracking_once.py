"""Passes over a run directory that grows, is copied or was told in part: nothing is told twice or lost."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from seen_in_mlflow import Mlflow
from tracked_runs import START, RunWriter, loss_of
from tracked_views import RecordingServer, open_view, saved, uri_of

from configs.rundir import RunDir
from infra.track.cursor import backlog, open_cursor
from infra.track.errors import TrackingRefusedError, TrackingUnreachableError
from infra.track.server import create_database
from infra.track.view import View


def test_a_second_pass_and_a_second_follower_tell_nothing_twice(small: RunWriter) -> None:
    view = open_view(small)
    view.update()
    assert not any(
        (backlog(small.run, saved(small)).events, backlog(small.run, saved(small)).records)
    )
    again = RecordingServer(small)
    view.update()
    open_view(small, again).update()
    assert again.pushed == []


def test_a_run_is_told_as_it_grows(writer: RunWriter) -> None:
    writer.begin()
    view = open_view(writer)
    view.update()
    writer.start_attempt(1)
    view.update()
    writer.steps(1, 1, 60)
    view.update(events=False)
    seen = Mlflow(uri_of(writer))
    assert seen.runs()["attempt 001"].info.status == "RUNNING"
    assert seen.series(seen.runs()["attempt 001"], "loss") == []
    view.update()
    assert len(seen.series(seen.runs()["attempt 001"], "loss")) == 60
    writer.steps(1, 61, 129)
    writer.fail_attempt(1, 130, START + 270.0)
    view.update(events=False)  # An attempt that ended is told at once.
    assert len(seen.series(seen.runs()["attempt 001"], "loss")) == 129
    writer.second_attempt()
    writer.summary(status="failed")
    view.update(summary=False)
    assert seen.runs()["quick"].info.status == "RUNNING"
    view.update()
    assert seen.runs()["quick"].info.status == "FAILED"
    assert seen.series(seen.runs()["quick"], "loss") == [(s, loss_of(s)) for s in range(1, 201)]


def test_a_diagnosis_that_comes_later_completes_the_trace(writer: RunWriter) -> None:
    writer.begin()
    writer.start_attempt(1)
    writer.steps(1, 1, 9)
    writer.fail_attempt(1, 10, START + 30.0)
    attempt = writer.run.attempt(1)
    later = {path: path.read_bytes() for path in (attempt.verdict_path, attempt.action_path)}
    for path in later:
        path.unlink()
    view = open_view(writer)
    view.update()
    seen = Mlflow(uri_of(writer))
    (trace,) = seen.client.search_traces([seen.experiment_id])
    assert trace.info.execution_duration == 30_000
    for path, content in later.items():
        path.write_bytes(content)
    view.update()
    (trace,) = seen.client.search_traces([seen.experiment_id])
    assert trace.info.execution_duration == 32_000
    names = [span.name for span in trace.data.spans]
    assert names.count("attempt 001") == names.count("diagnosis") == 1
    assert seen.runs()["attempt 001"].data.tags["overland.verdict"] == "NodeFailure"


def test_a_push_whose_answer_was_lost_is_not_repeated(whole: RunWriter) -> None:
    losing = RecordingServer(whole, lose_answer_after=3)
    with pytest.raises(TrackingUnreachableError):
        open_view(whole, losing).update()
    assert saved(whole).unconfirmed

    # A new process, as after a crash: it has only what was saved.
    again = RecordingServer(whole)
    assert open_view(whole, again).update() == []
    assert saved(whole).unconfirmed == []
    assert again.pushed[0] == 0, "what MLflow holds was pushed again"
    seen = Mlflow(uri_of(whole))
    runs = seen.runs()
    assert seen.series(runs["quick"], "loss") == [(s, loss_of(s)) for s in range(1, 201)]
    assert seen.series(runs["attempt 001"], "loss") == [(s, loss_of(s)) for s in range(1, 130)]


def test_runs_and_models_are_found_again_when_their_ids_were_not_saved(whole: RunWriter) -> None:
    view = open_view(whole)
    empty = open_cursor(whole.run, uri_of(whole), "overland")
    empty.save(whole.run)
    before = (whole.run.tracking_dir / "state.json").read_text()
    key = json.loads(before)["key"]
    view = View(whole.run, RecordingServer(whole), saved(whole), {})
    view.update()
    (whole.run.tracking_dir / "state.json").write_text(before)
    again = RecordingServer(whole)
    View(whole.run, again, saved(whole), {}).update()
    assert saved(whole).key == key
    assert sum(again.pushed) == 0
    seen = Mlflow(uri_of(whole))
    assert len(seen.runs()) == 7
    assert len(seen.client.search_logged_models([seen.experiment_id])) == 4
    assert seen.output_steps("attempt 002") == [150, 200]
    assert len(seen.client.search_traces([seen.experiment_id])) == 6


def test_one_refused_thing_does_not_keep_back_the_others(small: RunWriter) -> None:
    class Refusing(RecordingServer):
        def log_trace(self, *arguments: object, **more: object) -> None:
            raise TrackingRefusedError("no traces here")

    view = open_view(small, Refusing(small))
    assert set(view.update()) == {"no traces here"}
    seen = Mlflow(uri_of(small))
    assert len(seen.runs()) == 3
    assert seen.runs()["quick"].info.status == "FINISHED"
    assert backlog(small.run, saved(small)).records == 2, "they are tried again"
    assert open_view(small).update() == []
    assert len(seen.client.search_traces([seen.experiment_id])) == 2


def test_a_deleted_experiment_is_named(small: RunWriter) -> None:
    client = MlflowClient(tracking_uri=uri_of(small))
    client.delete_experiment(client.create_experiment("overland"))
    with pytest.raises(TrackingRefusedError, match="'overland' was deleted in MLflow: restore it"):
        open_view(small).update()


def test_a_copied_directory_gets_a_run_of_its_own(small: RunWriter, runs: Path) -> None:
    open_view(small).update()
    shutil.copytree(small.run.path, runs / "copy")
    copy = RunWriter(RunDir(runs / "copy"), small.tracking)
    open_view(copy).update()
    client = MlflowClient(tracking_uri=uri_of(small))
    experiment = client.get_experiment_by_name("overland")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 6


def test_a_flow_that_goes_on_reopens_the_run(small: RunWriter) -> None:
    view = open_view(small)
    view.update()
    seen = Mlflow(uri_of(small))
    view.reopen()
    assert seen.runs()["quick"].info.status == "RUNNING"
    view.end_without_summary(time.time(), status="KILLED")
    assert seen.runs()["quick"].info.status == "KILLED"
    view.reopen()
    small.summary()
    view.update()
    assert seen.runs()["quick"].info.status == "FINISHED"
    assert len(seen.series(seen.runs()["quick"], "final_loss")) == 1


def test_followers_of_two_runs_create_the_database_once(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    (tmp_path / ".mlflow.db.new").write_bytes(b"left behind by a killed follower")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(create_database, [path, path]))
    assert MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    assert {file.name for file in tmp_path.iterdir()} == {"mlflow.db", ".mlflow.db.lock"}


@pytest.fixture(autouse=True)
def _forget_uri() -> None:
    mlflow.set_tracking_uri(None)
