"""Evaluations beside a training: whose turn it is, what regressed, and who is told of it."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from configs.files import write_text
from configs.load import dump_config
from configs.regressions import EvaluationLeftOut, RegressionReport
from configs.rundir import COMMIT_MARKER_NAME, RunDir
from configs.schema import RunConfig
from flows import evaluate
from flows.evaluate import Following, due_steps, evaluate_as_committed
from tasks.evaluate import task as evaluate_task
from tasks.evaluate.folder import Say
from tests.flows.scored_runs import STEPS, commit, make, score
from tests.webhook_server import WebhookServer

URL_SECRET = "T0P-s3cret"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        monkeypatch.setenv("ALERT_URL", f"{server.url}/{URL_SECRET}")
        yield server


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """What Prefect is told."""
    events: list[tuple[str, dict[str, str]]] = []

    def emit_event(event: str, *, resource: dict[str, str], payload: dict[str, Any]) -> None:
        json.dumps(payload, allow_nan=False)
        events.append((event, resource))

    monkeypatch.setattr(evaluate_task, "emit_event", emit_event)
    return events


def follow(config: RunConfig, monkeypatch: pytest.MonkeyPatch, *, over: bool = True) -> list[int]:
    """Evaluate what is committed; returns the steps in the order in which they were."""
    run, tried, following = RunDir(config.resolved_run_dir()), [], Following()
    if over:
        following.training_over.set()

    def evaluate_checkpoint(
        config: RunConfig, step: int, stop: threading.Event, meanwhile: Callable[[], None], say: Say
    ) -> None:
        del meanwhile, say
        tried.append(step)
        score(run, step)
        if not over and not due_steps(config, run, training_over=False):
            stop.set()

    monkeypatch.setattr(evaluate, "evaluate_checkpoint", evaluate_checkpoint)
    with disable_run_logger():
        evaluate_as_committed.fn(config, following)
    return tried


def report_of(config: RunConfig, step: int) -> RegressionReport:
    report = RunDir(config.resolved_run_dir()).evaluation(step).regressions()
    assert report is not None
    return report


def test_a_regression_is_recorded_and_told_once(
    tmp_path: Path,
    server: WebhookServer,
    emitted: list[tuple[str, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    config = make(tmp_path, regressions={"mark_unhealthy": True})
    run = RunDir(config.resolved_run_dir())
    for step in STEPS:
        commit(run, step)
    assert follow(config, monkeypatch) == [*STEPS]
    assert [report_of(config, step).regressions for step in STEPS[:-1]] == [[]] * 5
    report = report_of(config, 24)
    assert report.unhealthy and run.evaluation(24).is_unhealthy()
    assert report.alert is not None
    assert (report.alert.event, report.alert.webhook) == ("emitted", "sent")
    ((event, resource),) = emitted
    assert event == "overland.evaluation.regressed"
    assert resource["overland.step"] == "24" and resource["overland.health"] == "unhealthy"
    ((path, message),) = server.messages
    assert path == f"/{URL_SECRET}"
    assert message["text"].startswith(
        "tiny: the checkpoint of step 24 has regressed: t acc 0.2, us"
    )
    assert message["regressions"][0]["usual"] == 0.5
    files = [path.read_text() for path in run.evaluations_dir.rglob("*") if path.is_file()]
    assert URL_SECRET not in "".join([caplog.text, dump_config(config), *files])
    follow(config, monkeypatch)
    assert len(emitted) == len(server.messages) == 1


def test_an_alert_that_a_killed_flow_did_not_tell_is_told_by_the_next(
    tmp_path: Path,
    server: WebhookServer,
    emitted: list[tuple[str, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make(tmp_path)
    for step in STEPS:
        commit(RunDir(config.resolved_run_dir()), step)
        score(RunDir(config.resolved_run_dir()), step)
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(
            evaluate_task, "post", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        follow(config, killed)
    assert report_of(config, 24).alert is not None and not server.messages
    assert follow(config, monkeypatch) == []
    assert len(server.messages) == 1


def test_where_the_newest_goes_first_it_is_compared_once_those_before_it_are_scored(
    tmp_path: Path,
    server: WebhookServer,
    emitted: list[tuple[str, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make(tmp_path, order="newest_first")
    for step in STEPS:
        commit(RunDir(config.resolved_run_dir()), step)
    assert follow(config, monkeypatch) == [*reversed(STEPS)]
    report = report_of(config, 24)
    assert report.compared_with == [8, 12, 16, 20]  # as soon as there were enough
    assert report.regressions and len(emitted) == len(server.messages) == 1


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("500", "failed with HTTP status 500"),
        ("slow", "no answer within 0.3 s"),
        ("down", "not reachable (ConnectError)"),
        ("gone", "unset"),
    ],
)
def test_a_webhook_in_trouble_ends_nothing(
    tmp_path: Path,
    server: WebhookServer,
    emitted: list[tuple[str, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    said: str,
) -> None:
    config = make(tmp_path, regressions={"webhook_timeout_s": 0.3 if trouble == "slow" else 5.0})
    server.status, server.hang = (500 if trouble == "500" else 200), trouble == "slow"
    if trouble == "down":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            monkeypatch.setenv("ALERT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    if trouble == "gone":
        monkeypatch.delenv("ALERT_URL")
    for step in STEPS:
        commit(RunDir(config.resolved_run_dir()), step)
    assert follow(config, monkeypatch) == [*STEPS]
    report = report_of(config, 24)
    assert report.alert is not None and report.alert.webhook == said
    assert len(emitted) == 1 and not report.unhealthy


def test_a_prefect_that_takes_no_events_and_a_full_disk_end_nothing(
    tmp_path: Path, server: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no events here")

    monkeypatch.setattr(evaluate_task, "emit_event", fail)
    config = make(tmp_path)
    run = RunDir(config.resolved_run_dir())
    for step in STEPS:
        commit(run, step)
    run.evaluation(8).regressions_path.mkdir(parents=True)  # cannot be written
    assert follow(config, monkeypatch) == [*STEPS]
    assert run.evaluation(24).regressions() is None
    run.evaluation(8).regressions_path.rmdir()
    assert follow(config, monkeypatch) == []
    report = report_of(config, 24)
    assert report.alert is not None and report.alert.event == "not emitted (RuntimeError)"
    assert len(server.messages) == 1


def test_under_load_the_newest_goes_first_and_the_oldest_are_left_out(
    tmp_path: Path,
    emitted: list[tuple[str, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del emitted
    config = make(tmp_path, order="newest_first", most_waiting=3, regressions={"webhook_env": None})
    run = RunDir(config.resolved_run_dir())
    for step in STEPS:
        commit(run, step)
    assert follow(config, monkeypatch, over=False) == [24, 20, 16]
    for step in (4, 8, 12):
        left = run.evaluation(step).left_out()
        assert isinstance(left, EvaluationLeftOut) and left.waiting == 6
        assert left.said == "left out: 6 checkpoints waited, and newer ones go first"
    assert due_steps(config, run, training_over=True) == []
    write_text(run.checkpoint(8).path / COMMIT_MARKER_NAME, "saved again")
    assert due_steps(config, run, training_over=False) == [8]
    assert follow(config, monkeypatch) == [8]
