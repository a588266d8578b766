from __future__ import annotations

import pytest

from configs.events import CheckpointEvent, EndEvent, SnapshotEvent, StepEvent, ValidationEvent
from configs.records import AttemptRecord, EvaluationScores, Score, Verdict
from infra.track.points import (
    MAX_VALUE_LENGTH,
    Point,
    attempt_tags,
    config_params,
    effective_points,
    points_of_event,
    score_name,
    score_points,
    summary_points,
)


def step_event(step: int, *, mfu: float | None = None) -> StepEvent:
    return StepEvent(
        time=10.0 + step,
        step=step,
        loss=2.0,
        grad_norm=0.5,
        learning_rate=0.001,
        step_time_s=1.0,
        tokens_per_s=64.0,
        mfu=mfu,
    )


def test_a_step_gives_its_metrics_at_its_own_time_and_mfu_only_where_known() -> None:
    points = points_of_event(step_event(3))
    assert {p.key: p.value for p in points} == {
        "loss": 2.0,
        "grad_norm": 0.5,
        "learning_rate": 0.001,
        "step_time_s": 1.0,
        "tokens_per_s": 64.0,
    }
    assert {(p.step, p.timestamp_ms) for p in points} == {(3, 13_000)}
    assert "mfu" in {p.key for p in points_of_event(step_event(3, mfu=0.4))}


def test_validation_and_checkpoint_events_give_one_metric_and_others_none() -> None:
    validation = ValidationEvent(time=1.0, step=5, loss=3.0, duration_s=0.1)
    checkpoint = CheckpointEvent(time=1.0, step=5, outcome="committed", duration_s=0.7)
    assert [(p.key, p.value) for p in points_of_event(validation)] == [("validation_loss", 3.0)]
    assert [(p.key, p.value) for p in points_of_event(checkpoint)] == [("checkpoint_time_s", 0.7)]
    assert points_of_event(EndEvent(time=1.0, step=5)) == []


def test_the_effective_curve_has_each_step_once_through_a_restart() -> None:
    highest: dict[str, int] = {}
    first = [p for step in (1, 2, 3) for p in points_of_event(step_event(step))]
    again = [p for step in (2, 3, 4, 5) for p in points_of_event(step_event(step))]
    curve = effective_points(first, highest) + effective_points(again, highest)
    assert [(p.key, p.step) for p in curve] == [("loss", step) for step in range(1, 6)]
    assert highest == {"loss": 5}


@pytest.mark.parametrize(
    ("task", "metric", "name"),
    [
        ("cloze", "acc,none", "cloze/acc"),
        ("gsm", "exact_match,strict-match", "gsm/exact_match/strict-match"),
        ("odd:task", "f1", "odd_task/f1"),
    ],
)
def test_score_names_fit_mlflow(task: str, metric: str, name: str) -> None:
    assert score_name(Score(task=task, metric=metric, value=1.0)) == name


def test_scores_are_tied_to_the_model_and_errors_follow_where_there_are_any() -> None:
    scores = EvaluationScores(
        step=50,
        scores=[
            Score(task="a", metric="acc,none", value=0.5, stderr=0.1),
            Score(task="b", metric="ppl,none", value=9.0),
        ],
        tasks=["a", "b"],
        plan_sha256="p",
        ended_at=7.0,
    )
    assert score_points(scores, "m-1") == [
        Point("a/acc", 0.5, 7.0, 50, "m-1"),
        Point("a/acc_stderr", 0.1, 7.0, 50, "m-1"),
        Point("b/ppl", 9.0, 7.0, 50, "m-1"),
        Point("unscored_tasks", 0.0, 7.0, 50, "m-1"),
    ]


def test_summary_points_take_numbers_only() -> None:
    summary = {
        "final_step": 9,
        "final_loss": 1.5,
        "goodput": {"goodput": 0.5, "wall_s": 4, "note": "x"},
    }
    points = {p.key: (p.value, p.step) for p in summary_points(summary, 1.0)}
    assert points == {
        "goodput.goodput": (0.5, 9),
        "goodput.wall_s": (4.0, 9),
        "final_loss": (1.5, 9),
    }
    failed_early = {"final_step": None, "final_loss": None, "goodput": None}
    assert summary_points(failed_early, 1.0) == []


def test_config_params_are_flat_short_and_without_passwords() -> None:
    params = config_params(
        {
            "name": "q",
            "train": {"steps": 200, "peak": None},
            "evaluate": {"tasks": ["a", "b"]},
            "tracking": {"uri": "https://me:s3cret@mlflow.example/x"},
            "long": "x" * 10_000,
        }
    )
    assert params.pop("long") == "x" * MAX_VALUE_LENGTH
    assert params == {
        "name": "q",
        "train.steps": "200",
        "train.peak": "null",
        "evaluate.tasks": '["a", "b"]',
        "tracking.uri": "https://mlflow.example/x",
    }


def test_attempt_tags_name_only_what_is_known() -> None:
    record = AttemptRecord(number=1, key="k", job_id="7", submitted_at=1.0)
    assert attempt_tags(record, None, None) == {"overland.job_id": "7"}
    verdict = Verdict(
        failure_class="ECCError",
        category="infrastructure",
        faulty_rank=0,
        action="restart_exclude_node",
        confidence=1.0,
        method="rule",
    )
    tags = attempt_tags(record.model_copy(update={"outcome": "failed"}), verdict, None)
    assert tags["overland.verdict"] == "ECCError"
    assert tags["overland.faulty_rank"] == "0"
    assert "overland.faulty_node" not in tags
    assert "overland.action" not in tags


def test_what_a_snapshot_costs_is_a_metric() -> None:
    begun = SnapshotEvent(time=5.0, step=4, outcome="begun", blocked_s=0.02)
    assert [(p.key, p.value, p.step) for p in points_of_event(begun)] == [
        ("snapshot_blocked_s", 0.02, 4)
    ]
    assert points_of_event(begun.model_copy(update={"outcome": "skipped"})) == []
