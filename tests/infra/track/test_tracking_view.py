"""One pass over a run directory, into a real SQLite MLflow: what is shown there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
from seen_in_mlflow import Mlflow
from tracked_runs import START, RunWriter, loss_of
from tracked_views import open_view, saved, uri_of

from configs.events import StepEvent
from configs.rundir import RunDir
from configs.schema import TrackingConfig
from infra.track.cursor import backlog


@pytest.fixture(scope="module")
def told(make_runs: Callable[[], Path]) -> RunWriter:
    """A whole run that was told; only to be looked at."""
    writer = RunWriter(RunDir(make_runs() / "quick"), TrackingConfig())
    writer.whole()
    assert open_view(writer).update() == []
    return writer


def test_a_whole_run_is_shown(told: RunWriter, tmp_path: Path) -> None:
    seen = Mlflow(uri_of(told))
    runs = seen.runs()
    assert set(runs) == {
        "quick",
        "attempt 001",
        "attempt 002",
        *(f"evaluation step {step}" for step in (50, 100, 150, 200)),
    }
    parent = runs["quick"]
    children = [run for name, run in runs.items() if name != "quick"]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}

    assert parent.info.status == "FINISHED"
    assert parent.info.start_time == int((START - 10) * 1000)
    assert parent.data.params["train.steps"] == "1000"
    assert parent.data.params["evaluate.tasks"].startswith('["heldout')
    assert parent.data.tags["overland.run_dir"] == str(told.run.path)
    assert parent.data.tags["site"] == "here"
    assert parent.data.metrics["goodput.goodput"] == 0.75
    assert parent.data.metrics["final_loss"] == loss_of(200)
    assert seen.artifacts(parent) == {"config.yaml", "manifest.json", "summary.json"}
    assert json.loads(seen.text(parent, "summary.json", tmp_path))["final_step"] == 200

    # The effective curve: each step once, with scores over the same steps.
    assert seen.series(parent, "loss") == [(s, loss_of(s)) for s in range(1, 201)]
    assert [s for s, _ in seen.series(parent, "validation_loss")] == [50, 100, 150, 200]
    assert seen.series(parent, "ppl/word_perplexity") == [
        (step, 1000.0 / step) for step in (50, 100, 150, 200)
    ]


def test_attempts_are_shown_with_their_failures(told: RunWriter) -> None:
    seen = Mlflow(uri_of(told))
    runs = seen.runs()
    failed, completed = runs["attempt 001"], runs["attempt 002"]
    assert (failed.info.status, completed.info.status) == ("FAILED", "FINISHED")
    assert failed.info.start_time == int(START * 1000)
    assert failed.info.end_time == int((START + 270) * 1000)
    wanted = {
        "overland.job_id": "job-1",
        "overland.outcome": "failed",
        "overland.signal": "9",
        "overland.verdict": "NodeFailure",
        "overland.category": "infrastructure",
        "overland.faulty_rank": "1",
        "overland.faulty_node": "n1",
        "overland.action": "restart_same_nodes",
    }
    assert wanted.items() <= failed.data.tags.items()
    assert seen.artifacts(failed) == {"verdict.json", "action.json", "launcher.log"}
    assert seen.series(failed, "loss") == [(s, loss_of(s)) for s in range(1, 130)]
    assert seen.series(completed, "loss") == [(s, loss_of(s)) for s in range(101, 201)]
    history = seen.client.get_metric_history(failed.info.run_id, "step_time_s")
    assert history[0].timestamp == int((START + 6) * 1000)


def test_checkpoints_are_models_with_scores(told: RunWriter) -> None:
    seen = Mlflow(uri_of(told))
    runs = seen.runs()
    best = seen.client.search_logged_models(
        [seen.experiment_id], order_by=[{"field_name": "metrics.ppl/word_perplexity"}]
    )
    assert [model.name for model in best] == [f"step_{step:08d}" for step in (200, 150, 100, 50)], (
        "the best checkpoint comes first"
    )
    model = best[0]
    assert model.status == "READY"
    assert model.source_run_id == runs["attempt 002"].info.run_id
    assert model.tags["overland.checkpoint"] == str(told.run.checkpoint(200).path)
    assert model.tags["overland.size_bytes"] == "1234"
    assert model.params == {
        "step": "200",
        "attempt": "2",
        "tensor": "1",
        "pipeline": "1",
        "data": "2",
    }
    evaluation = seen.run("evaluation step 200")
    assert evaluation.data.params["tasks"] == "cloze,ppl"
    assert evaluation.info.end_time - evaluation.info.start_time == 9000
    assert evaluation.data.metrics["cloze/acc_stderr"] == 0.01
    assert [m.model_id for m in evaluation.inputs.model_inputs] == [model.model_id]
    assert seen.output_steps("attempt 001") == [50, 100]


def test_attempts_and_evaluations_have_traces(told: RunWriter) -> None:
    seen = Mlflow(uri_of(told))
    traces = seen.client.search_traces([seen.experiment_id], max_results=50)
    by_name = {trace.data.spans[0].name: trace for trace in traces}
    assert len(traces) == len(by_name) == 6
    failed = by_name["attempt 001"]
    assert failed.info.state == "ERROR"
    assert failed.info.execution_duration == 272_000
    assert failed.info.trace_metadata["mlflow.sourceRun"] == (
        seen.runs()["attempt 001"].info.run_id
    )
    spans = {span.name: span for span in failed.data.spans}
    assert spans["train steps 1-50"].parent_id == failed.data.spans[0].span_id
    assert spans["train steps 1-50"].end_time_ns == int((START + 104.0) * 1e9)
    assert spans["diagnosis"].attributes["verdict"] == "NodeFailure"
    evaluated = by_name["evaluation step 50"]
    assert evaluated.info.state == "OK"
    assert [span.name for span in evaluated.data.spans[1:]] == ["export", "infer", "score"]


def test_a_failed_evaluation_is_shown_and_then_repaired(writer: RunWriter) -> None:
    writer.begin()
    writer.start_attempt(1)
    writer.steps(1, 1, 50)
    writer.failed_evaluation(50, START + 200.0)
    view = open_view(writer)
    view.update()
    seen = Mlflow(uri_of(writer))
    failed = seen.runs()["evaluation step 50"]
    assert failed.info.status == "FAILED"
    assert failed.data.tags["overland.failed_stage"] == "infer"
    writer.scores(50, START + 300.0)
    view.update()
    repaired = seen.runs()["evaluation step 50"]
    assert repaired.info.status == "FINISHED"
    assert repaired.data.tags["overland.failed_stage"] == ""
    assert repaired.data.metrics["cloze/acc"] == 0.5


def test_tasks_without_scores_are_told_until_they_are_scored(small: RunWriter) -> None:
    small.scores(50, START + 200.0, failed={"code": "its metric raised, at https://me:pw@host/"})
    view = open_view(small)
    view.update()
    seen = Mlflow(uri_of(small))
    evaluation = seen.run("evaluation step 50")
    model = seen.client.get_logged_model(evaluation.inputs.model_inputs[0].model_id)
    for tags in (evaluation.data.tags, model.tags):
        assert tags["overland.unscored_tasks"] == "code"
        assert tags["overland.unscored_reasons"].startswith("code: its metric raised")
        assert "pw@" not in tags["overland.unscored_reasons"]
    assert evaluation.data.metrics["unscored_tasks"] == 1.0
    assert evaluation.data.metrics["cloze/acc"] == 0.5
    small.scores(50, START + 900.0)
    view.update()
    evaluation = seen.run("evaluation step 50")
    assert evaluation.data.metrics["unscored_tasks"] == 0.0
    assert evaluation.data.tags["overland.unscored_tasks"] == ""


def test_scores_that_change_replace_only_what_changed(small: RunWriter) -> None:
    view = open_view(small)
    view.update()
    small.scores(50, START + 900.0, accuracy=0.75)
    view.update()
    seen = Mlflow(uri_of(small))
    evaluation = seen.runs()["evaluation step 50"]
    assert evaluation.data.metrics["cloze/acc"] == 0.75
    assert [value for _, value in seen.series(evaluation, "cloze/acc")] == [0.5, 0.75]
    assert len(seen.series(evaluation, "ppl/word_perplexity")) == 1


def test_a_loss_that_is_no_number_is_shown(writer: RunWriter) -> None:
    writer.begin()
    writer.start_attempt(1)
    good = StepEvent(
        time=START,
        step=1,
        loss=float("nan"),
        grad_norm=float("inf"),
        learning_rate=0.1,
        step_time_s=1.0,
        tokens_per_s=1.0,
    )
    path = writer.run.attempt(1).events_path
    path.write_text(
        good.model_dump_json() + "\n" + '{"event": "step", "torn\n[1]\n{"event": "new"}\n'
    )
    assert open_view(writer).update() == []
    seen = Mlflow(uri_of(writer))
    ((step, loss),) = seen.series(seen.runs()["attempt 001"], "loss")
    assert step == 1
    assert loss != loss
    assert backlog(writer.run, saved(writer)).events == 0


@pytest.fixture(autouse=True)
def _forget_uri() -> None:
    mlflow.set_tracking_uri(None)
