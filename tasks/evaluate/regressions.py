"""Compares a checkpoint's scores with those of the checkpoints before it. Pure.

The usual value is the median of the newest three: it follows a training that gets better. What a value
may deviate by chance is its own standard error together with the spread of the checkpoints around the
straight line through them (median of all slopes), so that steady progress is no spread. A checkpoint that
has regressed in a metric is no measure for the next ones in that metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TypeVar

from configs.records import EvaluationScores, Score
from configs.regression_schema import MetricThreshold, RegressionConfig
from configs.regressions import Alert, Regression, RegressionReport

_LEVEL_OF = 3
_SIGMA_PER_MAD = 1.4826
"""Of a normal distribution."""

OfMetric = TypeVar("OfMetric", Score, Regression)


@dataclass(frozen=True)
class Judged:
    """A scored checkpoint from before, with what was found of it."""

    scores: EvaluationScores
    report: RegressionReport | None


@dataclass(frozen=True)
class _Past:
    """A metric's values that count as usual, in order of steps."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    since_step: int | None
    """First of the newest checkpoints in a row that have regressed in it."""


def judge(
    scores: EvaluationScores, before: Sequence[Judged], config: RegressionConfig, now: float
) -> RegressionReport:
    """Compare with the checkpoints `before`, in order of steps."""
    found: list[Regression] = []
    compared: set[int] = set()
    for score in scores.scores:
        threshold = _threshold(score, config)
        better_high = _direction(score, threshold)
        if better_high is None or not _is_wanted(score, config):
            continue
        past = _past(score, before, config.window)
        if len(past.values) < config.min_history:
            continue
        compared |= set(past.steps)
        if regression := _compare(score, better_high, past, config, threshold, scores.step):
            found.append(regression)
    found.sort(key=lambda regression: -_severity(regression))
    report = RegressionReport(
        step=scores.step,
        checkpoint=scores.checkpoint,
        compared_with=sorted(compared),
        regressions=found,
        not_found=_not_found(scores.scores, config),
        unhealthy=config.mark_unhealthy and bool(found),
        judged_at=now,
    )
    return report.model_copy(update={"alert": Alert()}) if report.is_new else report


def _compare(
    score: Score,
    better_high: bool,
    past: _Past,
    config: RegressionConfig,
    threshold: MetricThreshold | None,
    step: int,
) -> Regression | None:
    usual = median(past.values[-_LEVEL_OF:])
    worse_by = (usual - score.value) * (1 if better_high else -1)
    if math.isnan(score.value):
        worse_by = math.inf
    relative = _or_default(threshold.relative if threshold else None, config.relative)
    absolute = _or_default(threshold.absolute if threshold else None, config.absolute)
    deviation = math.hypot(deviation_of(past.values), score.stderr or 0.0)
    limit = max(relative * abs(usual), absolute, config.deviations * deviation)
    if worse_by <= limit:
        return None
    return Regression(
        task=score.task,
        metric=score.metric,
        value=score.value,
        usual=usual,
        worse_by=worse_by,
        limit=limit,
        deviation=deviation,
        higher_is_better=better_high,
        since_step=step if past.since_step is None else past.since_step,
    )


def deviation_of(values: Sequence[float]) -> float:
    """Robust standard deviation of equally spaced values around the straight line through them."""
    slopes = [
        (after - before) / (j - i) for (i, before), (j, after) in combinations(enumerate(values), 2)
    ]
    slope = median(slopes)
    rests = [value - slope * i for i, value in enumerate(values)]
    middle = median(rests)
    spread = median(abs(rest - middle) for rest in rests)
    fitted = 2  # a line's two numbers make few values lie closer to it than others would
    return _SIGMA_PER_MAD * spread * len(values) / (len(values) - fitted)


def _past(score: Score, before: Sequence[Judged], window: int) -> _Past:
    """What the metric was, over the same number of documents: others measure something else."""
    steps: list[int] = []
    values: list[float] = []
    since: int | None = None
    for judged in reversed(before):
        then = _same_metric(score, judged.scores.scores)
        if then is None or then.samples != score.samples or not math.isfinite(then.value):
            continue
        regression = _same_metric(score, judged.report.regressions if judged.report else ())
        if regression is None:
            steps.append(judged.scores.step)
            values.append(then.value)
        elif not values:
            since = since or regression.since_step
        if len(values) == window:
            break
    return _Past(tuple(reversed(steps)), tuple(reversed(values)), since)


def _same_metric(score: Score, among: Iterable[OfMetric]) -> OfMetric | None:
    wanted = (score.task, score.metric)
    return next((other for other in among if (other.task, other.metric) == wanted), None)


def _names(score: Score) -> Iterator[str]:
    """What a config may call it, the most general first."""
    yield score.task
    yield f"{score.task}/{score.metric.removesuffix(',none')}"
    yield f"{score.task}/{score.metric}"


def _is_wanted(score: Score, config: RegressionConfig) -> bool:
    return not config.metrics or any(name in config.metrics for name in _names(score))


def _threshold(score: Score, config: RegressionConfig) -> MetricThreshold | None:
    by_name: Mapping[str, MetricThreshold] = {t.metric: t for t in config.thresholds}
    return next((by_name[name] for name in reversed([*_names(score)]) if name in by_name), None)


def _direction(score: Score, threshold: MetricThreshold | None) -> bool | None:
    if threshold is not None and threshold.higher_is_better is not None:
        return threshold.higher_is_better
    return score.higher_is_better


def _not_found(scores: Sequence[Score], config: RegressionConfig) -> list[str]:
    known = {name for score in scores for name in _names(score)}
    named = {*config.metrics, *(threshold.metric for threshold in config.thresholds)}
    return sorted(named - known)


def _severity(regression: Regression) -> float:
    """How many times the limit, nearly."""
    return regression.worse_by / (regression.limit or abs(regression.usual) or 1.0)


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value
