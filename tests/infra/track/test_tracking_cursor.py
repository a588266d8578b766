from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tracked_runs import run_writer

from configs.rundir import RunDir
from configs.schema import TrackingConfig
from infra.track import resolve_tracking_uri, tracking_state
from infra.track.cursor import AttemptCursor, backlog, load_cursor, open_cursor
from infra.track.uris import artifact_location, sqlite_path, strip_credentials


def test_the_default_is_sqlite_beside_the_run_directories(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "quick")
    uri = resolve_tracking_uri(TrackingConfig(), run)
    assert uri == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert sqlite_path(uri) == tmp_path / "runs" / "mlflow.db"
    assert artifact_location(uri, run) == f"file://{tmp_path}/runs/mlartifacts"
    assert resolve_tracking_uri(TrackingConfig(uri="http://x"), run) == "http://x"


def test_only_a_server_decides_about_artifacts(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "quick")
    assert artifact_location("http://mlflow:5000", run) is None
    assert sqlite_path("http://mlflow:5000") is None
    assert artifact_location("postgresql://db/mlflow", run) == f"file://{tmp_path}/runs/mlartifacts"
    assert artifact_location("sqlite:////data/m.db", run) == "file:///data/mlartifacts"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:s3cret@host:5000/x", "https://host:5000/x"),
        ("token@host", "token@host"),
        ("https://t0ken@host", "https://host"),
        ("a http://u:p@h1/ and http://u:p@h2/ b", "a http://h1/ and http://h2/ b"),
        ("https://u:p@ss@host/", "https://host/"),
        ("mssql://db/x?user=a&password=s3cret&y=1", "mssql://db/x?user=a&password=***&y=1"),
        ("mail me@example.org at http://host/a", "mail me@example.org at http://host/a"),
    ],
)
def test_credentials_are_taken_out_of_uris(text: str, clean: str) -> None:
    assert strip_credentials(text) == clean


def test_everything_is_missing_at_first_and_told_parts_are_not(tmp_path: Path) -> None:
    writer = run_writer(tmp_path / "run")
    assert tracking_state(writer.run) is None
    writer.whole()
    missing = backlog(writer.run, None)
    # 129 and 100 steps; 2 starts, 4 validations, 4 checkpoints, 1 fault, 1 end.
    assert missing.events == 229 + 12
    # 3 files of the run, 2 attempts, 4 checkpoints, 4 evaluations.
    assert missing.records == 13

    cursor = open_cursor(writer.run, "sqlite:///x", "overland")
    size = writer.run.attempt(1).events_path.stat().st_size
    cursor.attempts[1] = AttemptCursor(run_id="r", offset_bytes=size)
    cursor.save(writer.run)
    state = tracking_state(writer.run)
    assert state is not None
    assert state.pending_events == 100 + 6
    assert not state.complete


def test_a_cursor_is_taken_up_again_and_survives_nothing_it_is_not_about(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a")
    first = open_cursor(run, "http://u:p@one", "overland")
    first.mlflow_run_id = "r1"
    first.save(run)
    assert "u:p" not in (run.tracking_dir / "state.json").read_text()
    assert open_cursor(run, "http://u:other@one", "overland") == first

    elsewhere = open_cursor(run, "http://two", "overland")
    assert (elsewhere.key, elsewhere.mlflow_run_id) == (first.key, None)
    assert open_cursor(run, "http://one", "another").mlflow_run_id is None

    shutil.copytree(run.path, tmp_path / "b")
    copied = open_cursor(RunDir(tmp_path / "b"), "http://one", "overland")
    assert copied.mlflow_run_id is None
    assert copied.key != first.key


def test_an_unreadable_state_counts_as_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a")
    run.tracking_dir.mkdir(parents=True)
    (run.tracking_dir / "state.json").write_text('{"key": ')
    assert load_cursor(run) is None
    assert open_cursor(run, "http://one", "overland").mlflow_run_id is None
