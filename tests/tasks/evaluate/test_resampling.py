"""Standard errors by resampling: lm-eval's to the last bit, and an error where lm-eval would hang."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence

import pytest
from lm_eval.api import metrics

from configs.errors import EvaluationError
from tasks.evaluate import resampling

DRAW = random.Random(2)
SCORES = [DRAW.random() for _ in range(50)]
PAIRS = [(DRAW.randrange(3), DRAW.randrange(3)) for _ in range(30)]


@pytest.mark.parametrize("iterations", [100, 1000, 5500])
def test_it_is_that_of_lm_eval(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    expected = metrics.bootstrap_stderr(metrics.perplexity, SCORES, iterations)
    assert resampling.bootstrap_stderr(metrics.perplexity, SCORES, iterations) == expected


def test_numpys_numbers_stay_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    expected = metrics.bootstrap_stderr(metrics.matthews_corrcoef, PAIRS, 100)
    assert resampling.bootstrap_stderr(metrics.matthews_corrcoef, PAIRS, 100) == expected


def deadly(values: Sequence[float]) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return values[0]


def test_a_process_that_is_killed_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="was killed"):
        resampling.bootstrap_stderr(deadly, SCORES, 2000)


def overflowing(values: Sequence[float]) -> float:
    raise OverflowError("math range error")


def test_a_metric_that_fails_is_named_as_such() -> None:
    with pytest.raises(EvaluationError, match=r"OverflowError.*math range error"):
        resampling.bootstrap_stderr(overflowing, SCORES, 2000)


def test_lm_eval_uses_it_only_inside() -> None:
    own = metrics.bootstrap_stderr
    with resampling.own_resampling():
        assert metrics.bootstrap_stderr is resampling.bootstrap_stderr
    assert metrics.bootstrap_stderr is own is not resampling.bootstrap_stderr
