"""The training benchmark runs as a real job; its estimate holds on a machine that is never quiet."""

from __future__ import annotations

import numpy as np
import pytest
from training_jobs import make_config

from tasks.train.bench import bench_train
from tasks.train.bench_estimate import paired_overhead


@pytest.mark.slow
def test_the_benchmark_measures_all_arms() -> None:
    result = bench_train(steps=4, processes=2, config=make_config({}))
    assert set(result) == {
        "ours_step_s",
        "bare_step_s",
        "overhead",
        "overhead_low",
        "overhead_high",
        "noise",
        "steps",
        "model_parameters",
        "processes",
    }
    assert result["ours_step_s"] > 0 and result["bare_step_s"] > 0
    assert -1 < result["overhead_low"] <= result["overhead"] <= result["overhead_high"]
    assert result["noise"] > -1
    assert (result["steps"], result["processes"]) == (4, 2)


def noisy_steps(overhead: float, seed: int, pairs: int = 300) -> tuple[list[float], list[float]]:
    """Times of two arms on a machine whose speed wanders by tens of percent, now and then struck."""
    random = np.random.default_rng(seed)
    speed = 0.12 * np.exp(np.cumsum(random.normal(0, 0.03, pairs)))
    arms = [speed * np.exp(random.normal(0, 0.03, pairs)) for _ in range(2)]
    for arm in arms:
        arm[random.random(pairs) < 0.05] *= 3
    return list(arms[0] * (1 + overhead)), list(arms[1])


@pytest.mark.parametrize("overhead", [0.0, 0.02, 0.2])
def test_the_overhead_is_found_in_the_noise(overhead: float) -> None:
    found = [paired_overhead(*noisy_steps(overhead, seed)) for seed in range(20)]
    assert all(one.low < one.value < one.high for one in found)
    assert all(one.high - one.low < 0.03 for one in found)
    assert all(one.value == pytest.approx(overhead, abs=0.015) for one in found)
    assert sum(one.low <= overhead <= one.high for one in found) >= 17  # 95 % of them, about
