"""The best intervals under the model of :mod:`goodput_model`, and the classical ones beside them."""

from __future__ import annotations

import math
from collections.abc import Callable

from configs.goodput import Assumptions, Intervals, Reference
from tasks.recover.goodput_model import expected_goodput

MIN_MEMORY_INTERVAL_S = 1.0
"""The least time between snapshots in memory, where no step time says more."""
GOOD_ENOUGH = 0.001
"""An interval is good when it loses at most this share of the wall time against the best."""
MAX_SNAPSHOTS = 1 << 16
"""Most snapshots in memory that are looked at for one checkpoint."""


def best_intervals(assumptions: Assumptions) -> Intervals:
    """The intervals with the highest expected goodput; whole steps where the step time is known."""
    if not assumptions.memory_fraction:
        best = _best_storage(assumptions, 1)
    elif assumptions.memory_interval_s is None:
        best = _best_of_integers(lambda q: _best_storage(assumptions, q), assumptions)
    else:
        memory_s = assumptions.memory_interval_s
        best = _best_of_integers(lambda q: _multiple(memory_s, q), assumptions)
    return best if assumptions.step_time_s is None else _in_steps(assumptions, best)


def intervals_at(assumptions: Assumptions, storage_s: float) -> Intervals:
    """A given storage interval, with the snapshots in memory that fit it best."""
    if not assumptions.memory_fraction:
        return Intervals(storage_s=storage_s, memory_s=storage_s)
    if assumptions.memory_interval_s is not None:
        count = max(round(storage_s / assumptions.memory_interval_s), 1)
        return Intervals(storage_s=storage_s, memory_s=storage_s / count)
    least_s = assumptions.step_time_s or MIN_MEMORY_INTERVAL_S
    most = max(int(storage_s / least_s), 1)
    return _best_of_integers(
        lambda q: Intervals(storage_s=storage_s, memory_s=storage_s / q), assumptions, most
    )


def good_range_s(assumptions: Assumptions, best: Intervals) -> tuple[float, float]:
    """The shortest and the longest storage interval that are good enough, the memory's as it is."""
    enough = expected_goodput(assumptions, best) - GOOD_ENOUGH

    def is_good(storage_s: float) -> bool:
        return expected_goodput(assumptions, intervals_at(assumptions, storage_s)) >= enough

    least_s = min(least_interval_s(assumptions), best.storage_s)
    low_s = least_s if is_good(least_s) else _border(is_good, best.storage_s, least_s)
    far_s = best.storage_s
    while is_good(far_s):
        far_s *= 2
    return low_s, _border(is_good, far_s / 2, far_s)


def least_interval_s(assumptions: Assumptions) -> float:
    """The shortest storage interval: one checkpoint must be written before the next is begun."""
    least_s = max(assumptions.write_s - assumptions.blocked_s, 1e-6 * assumptions.write_s)
    step_s = assumptions.step_time_s
    return least_s if step_s is None else step_s * max(math.ceil(least_s / step_s - 1e-9), 1)


def references(assumptions: Assumptions) -> list[Reference]:
    """Classical intervals for saves that training waits for until they are written.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of
    the ACM 17 (1974) 530-531; J. T. Daly (2006), first and higher order.
    """
    mtbf_s, write_s = 1 / assumptions.failure_rate, assumptions.write_s
    restart_s = assumptions.detect_s + assumptions.restart_s
    found = {
        "Young 1974": young_s(mtbf_s, write_s),
        "Daly 2006, first order": daly_first_order_s(mtbf_s, write_s, restart_s),
        "Daly 2006, higher order": daly_s(mtbf_s, write_s),
    }
    changes = {
        "blocked_s": write_s,
        "write_bandwidth_bytes_per_s": math.inf,
        "memory_fraction": 0.0,
    }
    waiting = assumptions.model_copy(update=changes)
    return [
        Reference(
            name=name,
            interval_s=interval_s,
            goodput=expected_goodput(waiting, _multiple(interval_s, 1)),
        )
        for name, interval_s in found.items()
    ]


def young_s(mtbf_s: float, write_s: float) -> float:
    """Young's interval between checkpoints."""
    return math.sqrt(2 * write_s * mtbf_s)


def daly_first_order_s(mtbf_s: float, write_s: float, restart_s: float) -> float:
    """Daly's first estimate; where it gives nothing (writes longer than that), the write time."""
    interval_s = math.sqrt(2 * write_s * (mtbf_s + restart_s)) - write_s
    return interval_s if interval_s > 0 else write_s


def daly_s(mtbf_s: float, write_s: float) -> float:
    """Daly's higher-order estimate."""
    ratio = write_s / (2 * mtbf_s)
    if ratio >= 1:
        return mtbf_s
    return young_s(mtbf_s, write_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s


def _best_storage(assumptions: Assumptions, snapshots: int) -> Intervals:
    """The best storage interval with so many snapshots in memory for each checkpoint."""
    least_s = assumptions.write_s - snapshots * assumptions.blocked_s
    least_memory_s = assumptions.step_time_s or MIN_MEMORY_INTERVAL_S
    least_s = max(
        least_s, snapshots * least_memory_s if snapshots > 1 else 1e-6 * assumptions.write_s
    )
    # Without any cost of a save the best interval is at most the time between failures.
    lost_rate = assumptions.failure_rate * (1 - assumptions.memory_fraction)
    most_s = max(1 / lost_rate, least_s)

    def goodput(storage_s: float) -> float:
        return expected_goodput(assumptions, _parts_of(storage_s, snapshots))

    return _parts_of(_golden_section(goodput, least_s, most_s), snapshots)


def _golden_section(value: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one peak is highest between two positive bounds."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = math.log(low), math.log(high)
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    at_c, at_d = value(math.exp(c)), value(math.exp(d))
    while b - a > 1e-7:
        if at_c >= at_d:
            b, d, at_d = d, c, at_c
            c = b - ratio * (b - a)
            at_c = value(math.exp(c))
        else:
            a, c, at_c = c, d, at_d
            d = a + ratio * (b - a)
            at_d = value(math.exp(d))
    return max((low, math.exp((a + b) / 2), high), key=value)


def _best_of_integers(
    make: Callable[[int], Intervals], assumptions: Assumptions, most: int = MAX_SNAPSHOTS
) -> Intervals:
    """The best of make(1), make(2), ..., whose goodput has one peak; too short ones do not count."""

    def goodput(number: int) -> float:
        intervals = make(number)
        period_s = intervals.storage_s + intervals.snapshots * assumptions.blocked_s
        if period_s < assumptions.write_s * (1 - 1e-9):
            return period_s / assumptions.write_s - 1  # below all others, rising towards them
        return expected_goodput(assumptions, intervals)

    low, high = 1, max(most, 1)
    while high - low > 2:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        if goodput(left) < goodput(right):
            low = left
        else:
            high = right
    return make(max(range(low, high + 1), key=goodput))


def _in_steps(assumptions: Assumptions, best: Intervals) -> Intervals:
    """The best whole numbers of steps around the best intervals."""
    step_s = assumptions.step_time_s or 1.0
    least = round(least_interval_s(assumptions) / step_s)
    given_s = assumptions.memory_interval_s if assumptions.memory_fraction else None
    near = math.floor(best.memory_s / step_s)
    around = (
        {near + d for d in range(-2, 4)} | {least} if given_s is None else {round(given_s / step_s)}
    )
    around = {max(memory, 1) for memory in around}

    def counts(memory: int) -> set[int]:
        """Snapshots for each checkpoint: at least so many that the last one is written by then."""
        period_s = memory * step_s + assumptions.blocked_s
        fewest = max(math.ceil(assumptions.write_s / period_s - 1e-9), 1)
        if best.snapshots == 1:
            return {fewest} if given_s is not None else {1} & {fewest}
        tried = {best.snapshots + d for d in range(-3, 4)}
        tried |= {round(best.storage_s / step_s / other) for other in around}
        return {fewest} | {count for count in tried if count > fewest}

    candidates = [
        Intervals(
            storage_s=memory * count * step_s,
            memory_s=memory * step_s,
            storage_steps=memory * count,
            memory_steps=memory,
        )
        for memory in around
        for count in counts(memory)
    ]
    return max(candidates, key=lambda intervals: expected_goodput(assumptions, intervals))


def _border(is_good: Callable[[float], bool], good: float, bad: float) -> float:
    """Where `is_good` changes between a good and a bad value."""
    for _ in range(50):
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if is_good(middle) else (good, middle)
    return good


def _multiple(memory_s: float, snapshots: int) -> Intervals:
    return Intervals(storage_s=memory_s * snapshots, memory_s=memory_s)


def _parts_of(storage_s: float, snapshots: int) -> Intervals:
    return Intervals(storage_s=storage_s, memory_s=storage_s / snapshots)
