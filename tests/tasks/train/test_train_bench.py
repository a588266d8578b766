"""The training benchmark runs as a real job and reports both loops."""

from __future__ import annotations

import pytest
from training_jobs import make_config

from tasks.train.bench import bench_train

pytestmark = pytest.mark.slow


def test_the_benchmark_measures_both_loops() -> None:
    result = bench_train(steps=4, processes=2, config=make_config({}))
    assert set(result) == {
        "ours_step_s",
        "bare_step_s",
        "overhead",
        "steps",
        "model_parameters",
        "processes",
    }
    assert result["ours_step_s"] > 0 and result["bare_step_s"] > 0
    assert result["overhead"] == pytest.approx(result["ours_step_s"] / result["bare_step_s"] - 1)
    assert (result["steps"], result["processes"]) == (4, 2)
