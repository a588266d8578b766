"""The model's optimum is one, its formulas have the known limits, and a simulation agrees with them."""

from __future__ import annotations

import itertools
import math

import pytest

from configs.goodput import Assumptions, Intervals
from tasks.recover.goodput_model import expected_goodput, expected_shares
from tasks.recover.goodput_optimum import (
    GOOD_ENOUGH,
    best_intervals,
    daly_s,
    good_range_s,
    intervals_at,
    references,
)
from tasks.recover.goodput_simulation import simulate
from tests.tasks.recover.goodput_cases import any_assumptions, assume


def fits(assumptions: Assumptions, intervals: Intervals) -> bool:
    """Whether a checkpoint is written before the next is begun."""
    period_s = intervals.storage_s + intervals.snapshots * assumptions.blocked_s
    return period_s >= assumptions.write_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("mtbf_min", "interval_min"),
    [(24 * 60, 117), (6 * 60, 57), (15, 9.1)],
)
def test_dalys_estimate_is_that_of_his_paper(mtbf_min: float, interval_min: float) -> None:
    """Figures 3 to 5 of the paper: writes of 5 minutes."""
    assert daly_s(mtbf_min, 5.0) == pytest.approx(interval_min, rel=0.01)


@pytest.mark.parametrize("interval_s", [60.0, 600.0, 6000.0])
def test_with_writes_that_block_the_model_is_dalys(interval_s: float) -> None:
    """His run time for a solve time Ts: M exp(R / M) (exp((t + d) / M) - 1) Ts / t."""
    assumptions = assume(blocked_s=90.0, write_bandwidth_bytes_per_s=math.inf, gpus=20_000)
    mtbf_s, restart_s = 1 / assumptions.failure_rate, 360.0
    run_time = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + 90.0) / mtbf_s)
    intervals = Intervals(storage_s=interval_s, memory_s=interval_s)
    assert expected_goodput(assumptions, intervals) == pytest.approx(interval_s / run_time)


@pytest.mark.parametrize("seed", range(30))
def test_shares_make_a_whole_and_none_is_negative(seed: int) -> None:
    assumptions = any_assumptions(seed)
    intervals = best_intervals(assumptions)
    shares = expected_shares(assumptions, intervals)
    assert sum(shares.model_dump().values()) == pytest.approx(1.0)
    assert min(shares.model_dump().values()) >= 0.0
    assert shares.productive == pytest.approx(expected_goodput(assumptions, intervals))


@pytest.mark.parametrize("seed", range(30))
def test_no_neighbour_of_the_best_is_better(seed: int) -> None:
    assumptions = any_assumptions(seed)
    best = best_intervals(assumptions)
    assert fits(assumptions, best)
    goodput = expected_goodput(assumptions, best)
    for factor, more in itertools.product((0.5, 0.9, 0.99, 1, 1.01, 1.1, 2), (-5, -1, 0, 1, 5)):
        count = best.snapshots + more if assumptions.memory_fraction else 1
        if count < 1 or best.storage_s * factor / count < 1.0:
            continue
        storage_s = best.storage_s * factor
        other = Intervals(storage_s=storage_s, memory_s=storage_s / count)
        if fits(assumptions, other):
            assert expected_goodput(assumptions, other) <= goodput * (1 + 1e-9)
        if factor in (0.5, 2) and fits(assumptions, other) and not more:
            assert expected_goodput(assumptions, other) < goodput


def test_where_writing_is_fast_the_best_interval_solves_the_exact_equation() -> None:
    """The derivative of the model is zero where 1 - L t = exp(-L (t + c))."""
    assumptions = assume(gpus=16_000, blocked_s=20.0)
    rate, interval_s = assumptions.failure_rate, best_intervals(assumptions).storage_s
    assert interval_s > assumptions.write_s
    assert 1 - rate * interval_s == pytest.approx(math.exp(-rate * (interval_s + 20.0)), rel=1e-6)


def test_saves_that_cost_nothing_are_made_as_often_as_they_can_be_written() -> None:
    assumptions = assume(blocked_s=0.0)
    assert best_intervals(assumptions).storage_s == pytest.approx(assumptions.write_s)


@pytest.mark.parametrize("seed", range(8))
def test_whole_steps_are_the_best_ones_of_all(seed: int) -> None:
    assumptions = any_assumptions(seed, step_time_s=20.0, gpus=8000)
    goodput = expected_goodput(assumptions, best_intervals(assumptions))
    counts = range(1, 60) if assumptions.memory_fraction else [1]
    every = (
        Intervals(storage_s=20.0 * steps * count, memory_s=20.0 * steps)
        for steps, count in itertools.product(range(1, 400), counts)
    )
    best = max(expected_goodput(assumptions, one) for one in every if fits(assumptions, one))
    assert goodput == pytest.approx(best, abs=1e-6)


def test_snapshots_in_memory_are_more_frequent_where_storage_is_slow() -> None:
    slow = assume(memory_fraction=0.75, write_bandwidth_bytes_per_s=1e9)
    best = best_intervals(slow)
    assert best.snapshots > 1
    only_storage = Intervals(storage_s=best.storage_s, memory_s=best.storage_s)
    assert expected_goodput(slow, best) > expected_goodput(slow, only_storage)


def test_a_given_memory_interval_is_kept() -> None:
    assumptions = assume(memory_fraction=0.75, memory_interval_s=50.0, step_time_s=10.0)
    best = best_intervals(assumptions)
    assert best.memory_steps == 5
    assert best.storage_steps is not None and best.storage_steps % 5 == 0
    assert fits(assumptions, best)


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_interval_s": 7.4, "step_time_s": 5.0, "blocked_s": 0.0},
        {"memory_interval_s": 600.0, "step_time_s": 5.0, "blocked_s": 500.0},
        {"step_time_s": 1e3, "state_size_bytes": 1.0},
    ],
)
def test_a_checkpoint_in_steps_is_written_before_the_next(changes: dict[str, float]) -> None:
    assumptions = assume(memory_fraction=0.5, gpus=8, **changes)
    best = best_intervals(assumptions)
    assert best.storage_s + best.snapshots * assumptions.blocked_s >= assumptions.write_s
    assert 0 < good_range_s(assumptions, best)[0] <= best.storage_s


def test_without_failures_everything_is_productive() -> None:
    goodputs = []
    for days in (1e3, 1e5, 1e7, 1e9):
        assumptions = assume(node_mtbf_s=days * 86_400)
        goodputs.append(expected_goodput(assumptions, best_intervals(assumptions)))
    assert goodputs == sorted(goodputs)
    assert goodputs[-1] == pytest.approx(1.0, abs=1e-5)


def test_the_memory_tier_fades_out_with_its_share() -> None:
    intervals = Intervals(storage_s=600.0, memory_s=600.0)
    none = expected_goodput(assume(), intervals)
    assert expected_goodput(assume(memory_fraction=1e-9), intervals) == pytest.approx(none)


def test_good_intervals_end_where_a_tenth_of_a_point_is_lost() -> None:
    assumptions = assume()
    best = best_intervals(assumptions)
    goodput = expected_goodput(assumptions, best)
    for border_s in good_range_s(assumptions, best):
        at_border = expected_goodput(assumptions, intervals_at(assumptions, border_s))
        assert goodput - at_border == pytest.approx(GOOD_ENOUGH, rel=1e-3)


def test_saves_in_the_background_beat_every_classical_interval() -> None:
    assumptions = assume()
    goodput = expected_goodput(assumptions, best_intervals(assumptions))
    assert all(reference.goodput < goodput for reference in references(assumptions))


@pytest.mark.parametrize(
    "assumptions",
    [
        assume(),
        assume(gpus=10_000),
        assume(gpus=10_000, memory_fraction=0.75, write_bandwidth_bytes_per_s=2e9),
        assume(gpus=100_000, memory_fraction=0.5, detect_s=600.0, blocked_s=5.0),
        assume(gpus=100_000, restart_s=0.0, detect_s=0.0, memory_restart_s=0.0),
    ],
)
def test_a_simulation_agrees_within_its_confidence_interval(assumptions: Assumptions) -> None:
    """Within 1.7 times the 95 % interval: 99.9 %. Seeds are fixed, so this does not change by itself."""
    intervals = best_intervals(assumptions)
    shares = expected_shares(assumptions, intervals)
    simulated = simulate(assumptions, intervals, repetitions=200, seed=1)
    margin = 1.7 * (simulated.high - simulated.goodput)
    assert simulated.goodput == pytest.approx(shares.productive, abs=margin)
    assert margin < 0.1 * (1 - shares.productive), "too wide to tell anything"
    for name, share in shares.model_dump().items():
        assert getattr(simulated.shares, name) == pytest.approx(share, rel=0.05, abs=1e-5)


def test_a_wrong_model_would_be_seen() -> None:
    """The interval is narrow enough to tell a forgotten write time."""
    assumptions = assume(gpus=10_000, write_bandwidth_bytes_per_s=5e9)
    intervals = best_intervals(assumptions)
    forgotten = assumptions.model_copy(update={"write_bandwidth_bytes_per_s": math.inf})
    simulated = simulate(assumptions, intervals, repetitions=200, seed=2)
    assert expected_goodput(forgotten, intervals) > simulated.high
