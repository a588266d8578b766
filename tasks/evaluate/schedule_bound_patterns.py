"""The sharpest bound, for few kinds of long requests: by what a single worker can do before the end.

A pattern is a set of requests that one worker can finish, each by its deadline. If prices of requests
exist at which no pattern is worth more than 1, and all requests together are worth more than there are
workers, then no plan meets the deadlines. Gilmore and Gomory's linear programme finds good prices;
whatever it finds, the proof is checked by the best pattern at these prices (Farley's bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.evaluate.schedule_types import Worker, WorkItem

_MOST_KINDS = 24
_LEAST_SHARE = 1 / 40
"""A request shorter than this share of the plan fills any gap: there is nothing to prove."""
_GRID = 2048
_ROUNDS = 60
_HALVINGS = 7

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Requests that are alike."""

    length_s: float
    tail_s: float
    """Their metric: by so much before the end they must be done."""
    count: int


def patterns_bound_s(
    items: Sequence[WorkItem], workers: Sequence[Worker], bound_s: float, makespan_s: float
) -> float:
    """The latest end, from `bound_s` to a plan's, that is proven to be too early."""
    ready_s = min(worker.ready_s for worker in workers)
    kinds = _kinds(items)
    shortest_s = min((kind.length_s for kind in kinds), default=0.0)
    if not 0 < len(kinds) <= _MOST_KINDS or shortest_s < _LEAST_SHARE * (makespan_s - ready_s):
        return bound_s
    low_s, high_s = bound_s, makespan_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if _needed(kinds, middle_s - ready_s) > len(workers) * (1 + 1e-9):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _kinds(items: Sequence[WorkItem]) -> list[_Kind]:
    counts: dict[tuple[float, float], int] = {}
    for item in items:
        if item.requests and item.request_s > 0:
            key = (item.metric_s / item.metric_parts, item.request_s)
            counts[key] = counts.get(key, 0) + item.requests
    # Those with the longest metric are done first on any worker.
    return [_Kind(length, tail, counts[tail, length]) for tail, length in sorted(counts)[::-1]]


def _needed(kinds: Sequence[_Kind], span_s: float) -> float:
    """At least so many workers are needed to finish everything in this time; may be infinite."""
    if any(kind.length_s > span_s - kind.tail_s for kind in kinds):
        return float("inf")
    counts = np.array([kind.count for kind in kinds], dtype=np.float64)
    columns = np.diag([float(int((span_s - kind.tail_s) / kind.length_s)) for kind in kinds])
    best = 0.0
    for _ in range(_ROUNDS):
        prices = _prices(columns, counts)
        worth, pattern = _best_pattern(kinds, prices, span_s)
        best = max(best, float(counts @ prices) / max(worth, 1.0))
        if worth <= 1 + 1e-7:
            break
        columns = np.column_stack([columns, pattern])
    return best


def _prices(columns: Floats, counts: Floats) -> Floats:
    """Prices at which all requests are worth most while none of these patterns is worth more than 1."""
    from scipy.optimize import linprog

    solved = linprog(-counts, A_ub=columns.T, b_ub=np.ones(columns.shape[1]), method="highs")
    return np.maximum(np.asarray(solved.x, dtype=np.float64), 0.0)


def _best_pattern(kinds: Sequence[_Kind], prices: Floats, span_s: float) -> tuple[float, Floats]:
    """The pattern that is worth most, and its worth. Lengths are rounded down, so none is missed."""
    step_s = span_s / _GRID
    worth = np.full(_GRID + 1, -np.inf)
    worth[0] = 0.0
    stages: list[tuple[int, int, int, Floats]] = []
    """Kind, how many of it, their width, the worth before they could be chosen."""
    for at, kind in enumerate(kinds):
        room = int((span_s - kind.tail_s) / step_s * (1 + 1e-12))
        for copies in _binary(min(kind.count, int((span_s - kind.tail_s) / kind.length_s))):
            width = copies * int(kind.length_s * (1 - 1e-12) / step_s)
            stages.append((at, copies, width, worth))
            chosen = worth.copy()
            np.maximum(
                chosen[width : room + 1],
                worth[: room + 1 - width] + copies * prices[at],
                out=chosen[width : room + 1],
            )
            worth = chosen
    end = int(np.argmax(worth))
    best, pattern = float(worth[end]), np.zeros(len(kinds))
    value = best
    for at, copies, width, before in reversed(stages):
        if before[end] < value:
            pattern[at] += copies
            end -= width
            value = float(before[end])
    return best, pattern


def _binary(count: int) -> list[int]:
    """Numbers whose sums make each number up to `count`."""
    parts, size = [], 1
    while count > 0:
        parts.append(min(size, count))
        count -= parts[-1]
        size *= 2
    return parts
