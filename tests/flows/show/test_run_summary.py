"""The summary as programs read it, and the report as people do."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_run import (
    GOODPUT,
    KILLED,
    STRAGGLER,
    SyntheticRun,
    crashed_and_recovered,
    loss_at,
)

from configs.events import SnapshotEvent
from configs.rundir import write_record
from flows.show.notices import notices
from flows.show.report import RunSummary, build_summary, print_report, print_status
from flows.show.scores import lower_is_better, main_scores
from flows.show.state import RunView
from flows.show.summary import ScoreSummary


def stopped(path: Path, **verdict: object) -> SyntheticRun:
    """A run whose second attempt is the last."""
    made = SyntheticRun(path)
    made.prepare()
    made.submit(1)
    made.start(1)
    made.train(1, 1, 60)
    made.crash(1)
    made.submit(2)
    made.start(2, step=50)
    made.train(2, 51, 70)
    made.end(2, "failed", exit_code=1)
    made.decide(2, stop=True, verdict=KILLED.model_copy(update=verdict))
    return made


def summary_of(made: SyntheticRun, status: str = "completed", **fields: object) -> RunSummary:
    arguments = {"goodput": GOODPUT, "mlflow_run_id": "3f2a", **fields}
    return build_summary(made.run, status=status, **arguments)


def report(summary: RunSummary, width: int = 80) -> str:
    stream = io.StringIO()
    print_report(summary, Console(file=stream, width=width))
    return stream.getvalue()


def status(made: SyntheticRun, **fields: bool) -> str:
    stream = io.StringIO()
    print_status(made.run, Console(file=stream, width=80), **fields)
    return stream.getvalue()


# --- summary --------------------------------------------------------------------------------------


def test_the_summary_of_a_completed_run(tmp_path: Path) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    value = json.loads(summary_of(made).model_dump_json())
    required = {
        "run_dir", "status", "final_step", "final_loss", "attempts", "checkpoints", "evaluations",
        "goodput", "mlflow_run_id",
    }  # fmt: skip
    assert set(value) - required == {"failure", "tracking_uri", "evaluation_failures", "anomalies",
        "evaluations_left_out", "regressions", "unscored_tasks",
        "goes_on_from", "snapshots", "snapshots_skipped",
    }  # fmt: skip
    assert required <= set(value)
    assert (value["status"], value["final_step"]) == ("completed", 200)
    assert value["final_loss"] == pytest.approx(loss_at(200))
    assert value["failure"] is None
    first, second = value["attempts"]
    assert first["number"] == 1 and first["outcome"] == "failed"
    assert (first["verdict"], first["action"]) == ("NodeFailure", "restart_same_nodes")
    assert first["root_cause_file"] == "attempts/001/rank_00001.log"
    assert (second["outcome"], second["verdict"], second["start_step"]) == ("completed", None, 100)
    assert [c["step"] for c in value["checkpoints"]] == [50, 100, 150, 200]
    assert set(value["checkpoints"][0]) == {"step", "path", "size_bytes", "committed_at"}
    assert Path(value["checkpoints"][0]["path"]).is_dir()
    assert set(value["evaluations"][0]) == {"step", "task", "metric", "value", "stderr"}
    assert len(value["evaluations"]) == 16
    assert value["goodput"]["goodput"] == 0.7


def test_the_summary_survives_its_file(tmp_path: Path) -> None:
    summary = summary_of(crashed_and_recovered(tmp_path / "run"))
    write_record(tmp_path / "summary.json", summary)
    assert RunSummary.model_validate_json((tmp_path / "summary.json").read_bytes()) == summary


def test_final_loss_is_that_of_the_last_step_that_counts(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    made.train(1, 1, 70)
    made.crash(1)
    made.submit(2)
    made.start(2, step=50)
    summary = summary_of(made, "failed")
    assert (summary.final_step, summary.final_loss) == (50, loss_at(50))


def test_values_that_are_not_finite_are_null_in_valid_json(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.score(50, accuracy=float("nan"))
    text = summary_of(made).model_dump_json()
    value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [e["value"] for e in value["evaluations"]] == [None, None]
    assert RunSummary.model_validate_json(text).evaluations[0].value is None


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    failure = summary_of(stopped(tmp_path / "run"), "failed").failure
    assert failure and failure.attempt == 2 and failure.verdict == KILLED
    assert failure.sentence == (
        "attempt 2 failed after step 70: NodeFailure; "
        "the budget of 3 restarts for NodeFailure is spent"
    )


def test_a_run_that_failed_before_training_keeps_the_given_reason(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    summary = summary_of(made, "failed", goodput=None, failure="the corpus is empty")
    assert summary.failure and summary.failure.sentence == "the corpus is empty"
    assert (summary.final_step, summary.final_loss, summary.goodput) == (0, None, None)
    assert "the corpus is empty" in report(summary)


def test_a_password_in_the_tracking_uri_is_not_kept(tmp_path: Path) -> None:
    uri = "postgresql://overland:hunter2@db.example:5432/mlflow"
    summary = summary_of(SyntheticRun(tmp_path / "run"), tracking_uri=uri)
    assert summary.tracking_uri == "postgresql://overland:***@db.example:5432/mlflow"


# --- report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_report_fits_and_has_no_control_characters(tmp_path: Path, width: int) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    made.fail_evaluation(250)
    text = report(summary_of(made), width)
    assert "\x1b" not in text and "\r" not in text
    body, places = text.split("where to look")
    assert max(len(line) for line in body.splitlines()) <= width
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    for part in (
        "run completed: 200 steps, loss 1.3333, 1m 40s wall time, 1 restart",
        "NodeFailure (infrastructure), rank 1 on node-a, after step 129",
        "attempts/001/rank_00001.log:42",
        "step 250: evaluation failed in infer: exit code 1",
        "goodput  70.0 % of 1m 40s made progress",
    ):
        assert part in body, part
    assert "went back to step 100 (29 steps computed again)" in " ".join(body.split())
    assert "3f2a  (overland ui)" in places and "attempts/001/rank_00001.log" in places


def test_the_best_of_each_column_is_marked(tmp_path: Path) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    rows = {line.split()[0]: line for line in report(summary_of(made)).splitlines() if line.strip()}
    assert rows["200"].split()[3:] == ["0.3500*", "2.6500*", "0.3500*", "0.3500*"]
    assert "*" not in rows["50"]


def test_columns_are_aligned(tmp_path: Path) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    lines = report(summary_of(made)).splitlines()
    ends = [line.index("MB") for line in lines if "43.1 MB" in line]
    assert len(ends) == 4 and len(set(ends)) == 1


def test_many_tasks_become_several_tables(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.score(50, 0.2, tasks=12)
    made.score(100, 0.3, tasks=12)
    text = report(summary_of(made)).split("where to look")[0]
    assert max(len(line) for line in text.splitlines()) <= 80
    assert sum(line.startswith("step ") for line in text.splitlines()) >= 3
    assert text.count("0.3000*") == 11  # every column but that of the perplexity


def test_many_checkpoints_are_cut_to_the_newest_and_the_best(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    for step in range(10, 410, 10):
        made.score(step, accuracy=0.9 if step == 30 else 0.1 + step / 10_000)
    text = report(summary_of(made))
    assert "23 more checkpoints in summary.json" in text
    table = text.split("* best of its column")[0]
    shown = [int(line.split()[0]) for line in table.splitlines() if line.strip()[:1].isdigit()]
    assert shown == [30, *range(250, 410, 10)]


def test_the_report_of_an_interrupted_run(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    made.train(1, 1, 70)
    made.end(1, "cancelled", reason="interrupted from the keyboard")
    summary = summary_of(made, "failed")
    assert summary.status == "failed" and summary.failure and summary.failure.interrupted
    text = report(summary)
    assert "run interrupted: 70 steps" in text
    sentence = "interrupted after step 70: run the same command again to continue from"
    assert f"\n{sentence} step 50\n" in text
    assert "\nfailure\n" not in text and "failed" not in text
    write_record(made.run.summary_path, summary)
    assert status(made, live=False) == text


def test_a_run_interrupted_before_its_first_step(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.end(1, "cancelled")
    text = report(summary_of(made, "failed"))
    assert "interrupted before the first step: run the same command again to continue" in text
    assert "continue from the beginning" in " ".join(text.split())


def test_the_report_of_a_run_that_was_asked_to_stop(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    made.train(1, 1, 50)
    made.event(1, STRAGGLER)
    made.end(1, "stopped", reason="SIGUSR1 at step 50")
    made.submit(2)
    made.start(2, step=50, loaded_from="memory")
    made.train(2, 51, 70)
    made.end(2, "stopped", reason="stop file at step 70")
    summary = summary_of(made, "failed")
    assert [a.outcome for a in summary.attempts] == ["stopped", "stopped"]
    assert [a.loaded_from for a in summary.attempts] == ["nothing", "memory"]
    assert summary.failure and summary.failure.interrupted
    text = report(summary)
    assert "run stopped: 70 steps" in text
    assert "stopped after step 70: run the same command again to continue from step 50" in text
    assert "stopped, after step 50: SIGUSR1 at step 50" in text
    assert "started again; went on from step 50 in the node's memory" in text
    assert f"straggler: {STRAGGLER.message}" in text


def test_a_reason_that_is_given_comes_before_an_interruption(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.end(1, "cancelled")
    text = report(summary_of(made, "failed", failure="the disk is full"))
    assert "run failed" in text and "the disk is full" in text and "interrupted" not in text


def test_the_report_of_a_failed_run(tmp_path: Path) -> None:
    text = report(summary_of(stopped(tmp_path / "run"), "failed"))
    flat = " ".join(text.split())
    assert "run failed: 70 steps" in text
    assert "what attempt 2 failed after step 70: NodeFailure; the budget of 3 restarts" in flat
    assert "where attempts/002/rank_00001.log:42, rank 1, node node-a" in flat
    assert "what to do Check the node's memory and its kernel log." in flat
    assert "to go on start the run again: it continues from step 50" in flat
    restarts = text.split("restarts\n")[1]
    assert "attempt 1 " in restarts and "attempt 2 " not in restarts.split("goodput")[0]


def test_a_newer_snapshot_in_memory_is_named_beside_the_checkpoint(tmp_path: Path) -> None:
    made = stopped(tmp_path / "run")
    assert summary_of(made, "failed").goes_on_from == "step 50"
    made.event(2, SnapshotEvent(time=made.clock, step=65, outcome="begun", blocked_s=0.1))
    start = "step 50, or from step 65 if the node's memory holds it still"
    assert summary_of(made, "failed").goes_on_from == start
    assert f"it continues from {start}" in " ".join(report(summary_of(made, "failed")).split())
    action = made.run.attempt(2).action()
    assert action is not None
    write_record(
        made.run.attempt(2).action_path, action.model_copy(update={"rollback_to_step": 40})
    )
    assert summary_of(made, "failed").goes_on_from == "the beginning"


def test_text_out_of_logs_is_neither_markup_nor_control(tmp_path: Path) -> None:
    evil = "[bold]x[/bold] \x1b[2J\x1b]0;title\x07 [/nope] :smile: \x9b31m\r\nnext"
    made = stopped(tmp_path / "run", root_cause_text=evil, mitigation=evil)
    text = report(summary_of(made, "failed"), width=120)
    assert "[bold]x[/bold] [/nope] :smile: 31m next" in text
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(text)


def test_colors_only_on_a_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system="standard")
    print_report(summary_of(crashed_and_recovered(tmp_path / "run")), console)
    assert "\x1b[" in stream.getvalue()


# --- status ---------------------------------------------------------------------------------------


def test_status_of_a_run_that_has_not_begun(tmp_path: Path) -> None:
    text = status(SyntheticRun(tmp_path / "run"))
    assert "run in prepare" in text and "no step yet" in text and "none was committed" in text


def test_status_of_an_unfinished_run(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    made.train(1, 1, 120)
    made.score(50)
    made.begin_evaluation(100, "infer")
    made.crash(1)
    text = status(made, live=True)
    assert "run in pretrain: at work" in text
    assert "step 120/200 (60%)" in text and "restarting" in text
    assert "step 100: evaluation running (infer)" in text
    assert "NodeFailure (infrastructure), rank 1" in text
    interrupted = status(made, live=False)
    assert "not at work" in interrupted and "unfinished (infer)" in interrupted


def test_status_shows_scored_checkpoints_first_and_names_files_that_exist(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=2000)
    made.submit(1)
    made.start(1)
    made.train(1, 1, 1000, every=10)
    for step in range(10, 220, 10):
        made.score(step, accuracy=0.9 if step == 30 else 0.1 + step / 10_000)
    text = status(made, live=True)
    assert "82 more checkpoints in checkpoints/ and evaluations/" in text
    assert "summary.json" not in text
    table = text.split("checkpoints\n")[1].split("more checkpoints")[0]
    shown = [int(line.split()[0]) for line in table.splitlines() if "MB" in line]
    assert shown == [30, *range(60, 220, 10), 1000]


def test_checkpoints_without_scores_fill_the_room_that_is_left(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=2000)
    made.submit(1)
    made.start(1)
    made.train(1, 1, 200, every=10)
    made.score(10)
    made.score(20)
    table = status(made, live=True).split("checkpoints\n")[1]
    shown = [int(line.split()[0]) for line in table.splitlines() if "MB" in line]
    assert shown == [10, 20, *range(70, 210, 10)]


def test_status_is_the_report_until_the_run_goes_on(tmp_path: Path) -> None:
    made = stopped(tmp_path / "run")
    write_record(made.run.summary_path, summary_of(made, "failed"))
    assert "run failed: 70 steps" in status(made)
    made.submit(3)
    assert "run in pretrain" in status(made)


def test_regressions_and_what_was_left_out(tmp_path: Path) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    made.score(150, tasks=4)
    made.regress(150, since=150, unhealthy=True)
    made.regress(200, since=150)
    made.leave_out(75)
    summary = summary_of(made)
    first, second = summary.regressions
    assert (first.step, first.unhealthy, first.new) == (150, True, True)
    assert (second.step, second.unhealthy, second.new) == (200, False, False)
    assert first.metrics == ["heldout_cloze/acc,none"]
    text = report(summary, width=120)
    said = "heldout_cloze acc 0.1, usually 0.3 (worse by 0.2, limit 0.05)"
    assert f"step 150  not healthy: {said}" in text
    assert f"step 200  {said}" in text
    assert "step 75: evaluation left out: 7 checkpoints waited, and newer ones go first" in text
    assert said in status(made) or "usually 0.3" in status(made)


def test_tasks_without_scores_are_named_with_the_reason(tmp_path: Path) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    made.score(150, failed={"code": "ValueError: of [red]the\x1b task"})
    summary = summary_of(made)
    assert [(t.step, t.task) for t in summary.unscored_tasks] == [(150, "code")]
    said = "code: ValueError: of [red]the"
    assert f"step 150  {said}" in report(summary, width=120)
    assert said in status(made)
    now = RunView(made.run).refresh()
    told = [notice.text for notice in notices(replace(now, evaluations=()), now)]
    assert any(text.startswith(f"step 150 has no scores of {said}") for text in told)


# --- metrics --------------------------------------------------------------------------------------


def test_the_main_metric_of_each_task() -> None:
    scores = [
        ScoreSummary(step=1, task=task, metric=metric, value=0.5)
        for task, metric in (
            ("cloze", "brier_score,none"),
            ("cloze", "acc,none"),
            ("cloze", "acc_norm,none"),
            ("lm", "word_perplexity,none"),
            ("lm", "bits_per_byte,none"),
            ("copy", "exact_match,strict-match"),
            ("own", "score_a,none"),
            ("own", "score_b,none"),
        )
    ]
    assert [(s.task, s.metric) for s in main_scores(scores)] == [
        ("cloze", "acc_norm,none"),
        ("lm", "bits_per_byte,none"),
        ("copy", "exact_match,strict-match"),
        ("own", "score_a,none"),
    ]


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        ("acc,none", False),
        ("exact_match,strict-match", False),
        ("word_perplexity,none", True),
        ("bits_per_byte,none", True),
        ("brier_score,none", True),
        ("ter,none", True),
        ("inter_rater,none", False),
    ],
)
def test_which_direction_is_better(metric: str, lower: bool) -> None:
    assert lower_is_better(metric) is lower
