"""When a checkpoint's scores count as worse than before."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.records import EvaluationScores, Score
from configs.regression_schema import MetricThreshold, RegressionConfig
from configs.regressions import RegressionReport
from tasks.evaluate.regressions import Judged, deviation_of, judge

FLAT = (0.50, 0.51, 0.49, 0.50, 0.51, 0.50)
CONFIG = RegressionConfig()


def scores(step: int, value: float, **changes: Any) -> EvaluationScores:
    fields = {"task": "t", "metric": "acc,none", "samples": 100, "higher_is_better": True}
    score = Score.model_validate({**fields, "value": value, **changes})
    return EvaluationScores(step=step, scores=[score], tasks=["t"], plan_sha256="")


def course(
    values: Sequence[float], config: RegressionConfig = CONFIG, **changes: Any
) -> list[RegressionReport]:
    """The reports on one checkpoint after the other."""
    before: list[Judged] = []
    for number, value in enumerate(values, start=1):
        now = scores(number, value, **changes)
        before.append(Judged(now, judge(now, before, config, now=1.0)))
    return [judged.report for judged in before if judged.report]


def regressed(values: Sequence[float], config: RegressionConfig = CONFIG, **changes: Any) -> bool:
    """Whether the last of the values has."""
    return bool(course(values, config, **changes)[-1].regressions)


def test_a_fall_is_told_with_its_numbers() -> None:
    *quiet, report = course([*FLAT, 0.40], stderr=0.01)
    assert not any(r.regressions or r.alert for r in quiet)
    (found,) = report.regressions
    assert (found.task, found.metric, found.value) == ("t", "acc,none", 0.40)
    assert found.usual == 0.50 and found.worse_by == pytest.approx(0.1)
    assert report.compared_with == [1, 2, 3, 4, 5, 6]
    assert report.is_new and report.alert is not None and not report.unhealthy
    assert report.said.startswith("t acc 0.4, usually 0.5 (worse by 0.1, limit 0.0")


def test_the_documented_report_is_what_these_scores_give() -> None:
    text = (Path(__file__).parents[3] / "docs" / "regressions.md").read_text()
    documented = RegressionReport.model_validate_json(
        text.partition("```json\n")[2].partition("```")[0]
    )
    before: list[Judged] = []
    for step, value in zip(range(50, 301, 50), (0.18, 0.24, 0.27, 0.29, 0.30, 0.21), strict=True):
        now = scores(step, value, task="heldout_cloze", stderr=0.01)
        before.append(Judged(now, judge(now, before, CONFIG, now=documented.judged_at)))
    report = before[-1].report
    assert report is not None and report.alert is not None
    told = {"checkpoint": documented.checkpoint, "alert": documented.alert}
    found, shown = report.model_copy(update=told).model_dump(), documented.model_dump()
    assert [r.pop("limit") for r in found["regressions"]] == pytest.approx(
        [r.pop("limit") for r in shown["regressions"]]
    )
    assert [r.pop("deviation") for r in found["regressions"]] == pytest.approx(
        [r.pop("deviation") for r in shown["regressions"]]
    )
    assert found == shown
    assert f"`{report.said}`" in text


@pytest.mark.parametrize("higher", [True, False])
def test_direction_decides_what_is_worse(higher: bool) -> None:
    assert regressed([*FLAT, 0.3], higher_is_better=higher) is higher
    assert regressed([*FLAT, 0.7], higher_is_better=higher) is not higher


def test_a_metric_without_direction_is_compared_where_the_config_gives_one() -> None:
    assert not regressed([*FLAT, 0.1], higher_is_better=None)
    for name in ("t", "t/acc", "t/acc,none"):
        config = RegressionConfig(thresholds=[MetricThreshold(metric=name, higher_is_better=True)])
        assert regressed([*FLAT, 0.1], config, higher_is_better=None)


@pytest.mark.parametrize(
    ("limits", "last", "expected"),
    [
        ({"relative": 0.3}, 0.36, False),
        ({"relative": 0.3}, 0.34, True),
        ({"absolute": 0.2}, 0.31, False),
        ({"absolute": 0.2}, 0.29, True),
        ({"relative": 0.0, "deviations": 0.0}, 0.499, True),
        ({"thresholds": [MetricThreshold(metric="t/acc", relative=0.3)]}, 0.36, False),
        ({"relative": 0.9, "thresholds": [MetricThreshold(metric="t", relative=0.1)]}, 0.4, True),
        ({"metrics": ["other"]}, 0.1, False),
        ({"metrics": ["t/acc"]}, 0.1, True),
    ],
)
def test_limits(limits: dict[str, Any], last: float, expected: bool) -> None:
    assert regressed([*FLAT, last], RegressionConfig(**limits)) is expected


def test_a_fall_within_chance_is_none() -> None:
    assert regressed([*FLAT, 0.44])
    assert not regressed([*FLAT, 0.44], stderr=0.05)
    noisy = (0.40, 0.60, 0.42, 0.58, 0.41, 0.59)
    assert not regressed([*noisy, 0.40])


def test_steady_progress_is_no_spread_that_hides_a_fall() -> None:
    """Perplexity: the last one is no worse than the average of all, but than the newest."""
    falling = [100.0 - 8.0 * number for number in range(8)]
    assert not regressed([*falling, 44.0], higher_is_better=False)
    assert regressed([*falling, 60.0], higher_is_better=False)
    assert deviation_of(falling) == pytest.approx(0.0)


def test_one_bad_checkpoint_before_does_not_hide_the_next_nor_move_what_is_usual() -> None:
    reports = course([*FLAT, 0.30, 0.30, 0.30, 0.30, 0.50, 0.30])
    streak = [[found.since_step for found in report.regressions] for report in reports[6:]]
    assert streak == [[7], [7], [7], [7], [], [12]]
    assert [report.alert is not None for report in reports[6:]] == [
        *(True, False, False, False, False, True)
    ]
    assert all(found.usual == 0.5 for report in reports for found in report.regressions)


def test_too_short_a_history_says_nothing() -> None:
    assert not regressed([0.5, 0.5, 0.5, 0.1])
    assert regressed([0.5, 0.5, 0.5, 0.5, 0.1])


def test_only_the_newest_are_compared_with() -> None:
    report = course([0.9] * 5 + [0.5] * 8, RegressionConfig(window=5, relative=5.0))[-1]
    assert report.compared_with == [8, 9, 10, 11, 12]


def test_another_number_of_documents_is_another_measure() -> None:
    before = [Judged(scores(n, 0.9, samples=10), None) for n in range(1, 9)]
    assert not judge(scores(9, 0.1), before, CONFIG, now=1.0).regressions


@pytest.mark.parametrize(
    ("value", "higher"), [(math.nan, True), (math.nan, False), (math.inf, False)]
)
def test_a_value_that_is_no_number_any_more_has_regressed(value: float, higher: bool) -> None:
    reports = course([*FLAT, value, 0.5], higher_is_better=higher)
    assert reports[-2].regressions and not reports[-1].regressions
    again = RegressionReport.model_validate_json(reports[-2].model_dump_json())
    assert again.regressions[0].worse_by == math.inf


def test_it_is_unhealthy_only_where_the_config_says_so() -> None:
    marks = RegressionConfig(mark_unhealthy=True)
    assert [report.unhealthy for report in course([*FLAT, 0.1, 0.5], marks)[-2:]] == [True, False]


def test_names_that_no_score_has_are_reported() -> None:
    config = RegressionConfig(metrics=["t/acc", "t/f1"], thresholds=[MetricThreshold(metric="u")])
    assert judge(scores(1, 0.5), [], config, now=1.0).not_found == ["t/f1", "u"]


def test_the_worst_comes_first() -> None:
    def three(step: int, *values: float) -> EvaluationScores:
        each = [
            scores(step, value, task=task).scores[0]
            for task, value in zip("abc", values, strict=True)
        ]
        return EvaluationScores(step=step, scores=each, tasks=[*"abc"], plan_sha256="")

    before = [Judged(three(n, 0.5, 0.5, 0.5), None) for n in range(1, 6)]
    report = judge(three(6, 0.4, 0.1, 0.5), before, CONFIG, now=1.0)
    assert [found.task for found in report.regressions] == ["b", "a"]
    assert report.said.endswith(", and 1 more")


def test_values_that_jitter_seldom_raise_an_alarm() -> None:
    """A standard error like the jitter between checkpoints, and no relative limit to help."""
    rng = random.Random(0)
    values = [rng.gauss(0.0, 1.0) for _ in range(3000)]
    reports = course(values, RegressionConfig(relative=0.0), stderr=1.0)
    assert sum(bool(report.regressions) for report in reports) < 15
