"""The follower process: beside a run, through crashes of its own and of the tracking server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mlflow
import pytest
from seen_in_mlflow import Mlflow
from tracked_runs import START, RunWriter, loss_of

from configs.errors import TrackingError
from configs.rundir import RunDir
from configs.schema import TrackingConfig
from infra.track import (
    Follower,
    TrackingState,
    catch_up,
    resolve_tracking_uri,
    start_follower,
    tracking_state,
)

pytestmark = [
    pytest.mark.slow,
    # MLflow 3.17 with SQLAlchemy 2.1.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]

LIMIT_S = 120.0
CURVE = [(step, loss_of(step)) for step in range(1, 201)]


def wait_for(writer: RunWriter, what: Callable[[TrackingState], object]) -> TrackingState:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        state = tracking_state(writer.run)
        if state is not None and what(state):
            return state
        time.sleep(0.05)
    raise AssertionError(f"not within {LIMIT_S:.0f} s: {tracking_state(writer.run)}")


@contextmanager
def stopped_at_the_end(follower: Follower) -> Iterator[Follower]:
    try:
        yield follower
    finally:
        follower.finish(0.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[None]:
    """A real tracking server over folder/mlflow.db."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", f"{folder}/server-artifacts"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
        )
    try:
        wait_until_healthy(server, port, folder / "server.log")
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_until_healthy(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2.0):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_a_follower_killed_in_the_middle_leaves_nothing_out_and_nothing_twice(
    writer: RunWriter,
) -> None:
    writer.begin()
    writer.first_attempt()
    follower = start_follower(writer.run, writer.tracking, prefect_flow_run_id="flow-1")
    with stopped_at_the_end(follower):
        wait_for(writer, lambda state: state.pending_events < 130)
        os.kill(follower.pid, signal.SIGKILL)
        writer.second_attempt()
        for step in (50, 100, 150, 200):
            writer.scores(step, START + 3.0 * step)
        writer.summary()
        assert follower.finish(LIMIT_S)
    state = tracking_state(writer.run)
    assert state is not None
    assert (state.complete, state.last_error) == (True, "")

    seen = Mlflow(state.tracking_uri)
    runs = seen.runs()
    parent = runs["quick"]
    assert state.mlflow_run_id == parent.info.run_id
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["prefect.flow_run_id"] == "flow-1"
    assert parent.data.tags["overland.version"]
    assert seen.series(parent, "loss") == CURVE
    assert seen.series(runs["attempt 001"], "loss") == CURVE[:129]
    assert seen.series(runs["attempt 002"], "loss") == CURVE[100:]
    assert len(seen.client.search_logged_models([seen.experiment_id])) == 4
    assert len(runs) == 7


def test_a_follower_that_is_killed_is_started_again_while_the_run_goes_on(
    writer: RunWriter,
) -> None:
    writer.begin()
    with stopped_at_the_end(start_follower(writer.run, writer.tracking)) as follower:
        first = follower.pid
        os.kill(first, signal.SIGKILL)
        writer.small()
        wait_for(writer, lambda state: state.mlflow_run_id and not state.pending_events)
        assert follower.pid != first


def test_scores_are_on_the_checkpoints_model_within_a_minute(writer: RunWriter) -> None:
    """While the run goes on: nobody tells the follower to hurry."""
    writer.begin()
    writer.start_attempt(1)
    with stopped_at_the_end(start_follower(writer.run, writer.tracking)):
        wait_for(writer, lambda state: state.mlflow_run_id)
        writer.steps(1, 1, 50)
        wait_for(writer, lambda state: not state.pending_events)
        deadline = time.monotonic() + 240
        writer.scores(50, START, accuracy=0.1)
        writer.regressed(50, unhealthy=True)
        seen = Mlflow(resolve_tracking_uri(writer.tracking, writer.run))
        while True:
            models = seen.client.search_logged_models([seen.experiment_id])
            values = {m.key: m.value for model in models for m in model.metrics or ()}
            tags = {key: value for model in models for key, value in model.tags.items()}
            if "cloze/acc" in values and tags.get("overland.healthy") == "false":
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert (values["cloze/acc"], values["ppl/word_perplexity"]) == (0.1, 20.0)
    assert (len(models), tags["overland.regressed"]) == (1, "true")
    assert tags["overland.regressions"].startswith("cloze acc 0.1, usually 0.5")
    run = seen.runs()["evaluation step 50"]
    assert run.data.tags["overland.healthy"] == "false"


def test_beside_another_flows_follower_nothing_is_missing(writer: RunWriter) -> None:
    """`overland evaluate` beside a live run: what it found out, the run's own follower tells."""
    writer.begin()
    with stopped_at_the_end(start_follower(writer.run, writer.tracking)) as of_the_run:
        wait_for(writer, lambda state: state.mlflow_run_id)
        begun = time.monotonic()
        assert start_follower(writer.run, writer.tracking).finish(LIMIT_S)
        assert time.monotonic() - begun < LIMIT_S / 2
        writer.small()
        assert of_the_run.finish(LIMIT_S)
    state = tracking_state(writer.run)
    assert state is not None and state.complete


def test_a_server_that_comes_up_late_is_told_everything_once(runs: Path) -> None:
    port = free_port()
    config = TrackingConfig(uri=f"http://me:s3cret@127.0.0.1:{port}")
    writer = RunWriter(RunDir(runs / "quick"), config)
    writer.begin()
    with stopped_at_the_end(start_follower(writer.run, config)) as follower:
        writer.first_attempt()
        down = wait_for(writer, lambda state: state.last_error)
        assert down.mlflow_run_id is None
        assert down.pending_events > 130
        writer.second_attempt()
        with mlflow_server(runs, port):
            wait_for(writer, lambda state: state.pending_events < 100)
            with pytest.raises(TrackingError, match="is being tracked by a live run"):
                catch_up(writer.run, config)
            writer.scores(200, START + 600.0)
            writer.summary()
            assert follower.finish(LIMIT_S)
            seen = Mlflow(f"http://127.0.0.1:{port}")
            check_server_side(seen)
            verdict = seen.text(seen.runs()["attempt 001"], "verdict.json", runs)
            assert "NodeFailure" in verdict
    for path in (runs / "quick" / "tracking").iterdir():
        assert b"s3cret" not in path.read_bytes(), path


def check_server_side(seen: Mlflow) -> None:
    runs = seen.runs()
    parent = runs["quick"]
    assert parent.info.status == "FINISHED"
    assert parent.data.params["tracking.uri"].startswith("http://127.0.0.1:")
    assert "s3cret" not in str(parent.data)
    assert seen.series(parent, "loss") == CURVE
    assert seen.series(runs["attempt 001"], "loss") == CURVE[:129]
    assert seen.series(runs["attempt 002"], "loss") == CURVE[100:]
    models = seen.client.search_logged_models([seen.experiment_id])
    assert sorted(model.name for model in models) == [f"step_{s:08d}" for s in (50, 100, 150, 200)]
    traces = seen.client.search_traces([seen.experiment_id])
    assert len(traces) == 3
    assert {trace.data.spans[0].name for trace in traces} >= {"attempt 001", "evaluation step 200"}


@pytest.mark.soak
def test_a_dead_server_holds_up_nothing_and_all_is_told_elsewhere(runs: Path) -> None:
    dead = TrackingConfig(uri=f"http://me:s3cret@127.0.0.1:{free_port()}")
    writer = RunWriter(RunDir(runs / "quick"), dead)
    writer.small()

    begun = time.monotonic()
    assert not start_follower(writer.run, dead).finish(0.2)
    assert time.monotonic() - begun < 10.0

    with pytest.raises(TrackingError) as caught:
        catch_up(writer.run, dead)
    assert str(caught.value).startswith(f"{writer.run.path} could not be tracked: MLflow cannot")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)

    catch_up(writer.run, TrackingConfig())
    state = tracking_state(writer.run)
    assert state is not None
    assert state.complete
    seen = Mlflow(resolve_tracking_uri(TrackingConfig(), writer.run))
    assert seen.runs()["quick"].info.status == "FINISHED"


def test_a_follower_ends_with_its_flow(writer: RunWriter) -> None:
    writer.begin()
    writer.start_attempt(1)
    follow = [sys.executable, "-m", "infra.track.follow", str(writer.run.path), "--stdin"]
    flow = (
        "import os, subprocess, sys; "
        f"subprocess.Popen({follow!r}, stdin=subprocess.PIPE, start_new_session=True); "
        "os.kill(os.getpid(), 9)"
    )
    output = subprocess.run([sys.executable, "-c", flow], capture_output=True, timeout=LIMIT_S)
    # Both pipes are closed, so the follower has ended as well.
    assert output.returncode == -signal.SIGKILL
    seen = Mlflow(resolve_tracking_uri(writer.tracking, writer.run))
    assert seen.runs()["quick"].info.status == "KILLED"
    assert seen.runs()["attempt 001"].info.status == "RUNNING"


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.track.follow", str(tmp_path), "--once"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert output.returncode == 2
    assert output.stderr == f"{tmp_path} is no run directory: it has no config.yaml\n"
    assert not (tmp_path / "tracking").exists()


@pytest.fixture(autouse=True)
def _forget_uri() -> Iterator[None]:
    yield
    mlflow.set_tracking_uri(None)
