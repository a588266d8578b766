"""Goodput of simulated runs under independent failures: the check of the model.

The times between failures are exponential. Each repetition ends when it comes back to
storage for the first time after its span, that is after a whole number of lives: kept time over wall
time is then unbiased (in the limit of many repetitions; Wald), and only chance is between it and the
model. Real faults: :mod:`tasks.recover.goodput_trace`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from configs.goodput import Assumptions, Intervals, Simulated
from tasks.recover.goodput_run import Seconds, SimulatedRun, shares_of

FAILURES_PER_REPETITION = 100


def simulate(
    assumptions: Assumptions, intervals: Intervals, *, repetitions: int, seed: int
) -> Simulated:
    """Mean goodput of repeated runs with independent failures, with its confidence interval."""
    streams = np.random.default_rng(seed).spawn(repetitions)
    runs = [_run_with_independent_failures(assumptions, intervals, stream) for stream in streams]
    accounts = [run.seconds for run in runs]
    goodput, margin = ratio_with_margin(accounts)
    return Simulated(
        goodput=goodput,
        low=goodput - margin,
        high=goodput + margin,
        failures=sum(run.failures for run in runs),
        repetitions=repetitions,
        shares=shares_of(accounts),
    )


def ratio_with_margin(accounts: Sequence[Seconds]) -> tuple[float, float]:
    """Kept over wall time of all runs, and half its 95 % confidence interval (delta method)."""
    kept = np.array([account.kept for account in accounts])
    wall = np.array([account.wall for account in accounts])
    ratio = float(kept.sum() / wall.sum())
    deviation = float(np.std(kept - ratio * wall, ddof=1)) if len(accounts) > 1 else math.inf
    return ratio, 1.96 * deviation / (float(wall.mean()) * math.sqrt(len(accounts)))


def _run_with_independent_failures(
    assumptions: Assumptions, intervals: Intervals, random: np.random.Generator
) -> SimulatedRun:
    run = SimulatedRun(assumptions, intervals)
    mean_s = 1 / assumptions.failure_rate
    span_s = FAILURES_PER_REPETITION * mean_s
    time = float(random.exponential(mean_s))
    while True:
        survives = float(random.random()) < assumptions.memory_fraction
        run.fail(time, memory_survives=survives)
        time += float(random.exponential(mean_s))
        if run.ready_at > span_s and not run.from_memory and time > run.ready_at:
            run.finish(run.ready_at)
            return run
