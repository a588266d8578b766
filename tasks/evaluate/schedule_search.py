"""Looks for the earliest end of a plan: deadlines from an end, pieces from deadlines, and bisection."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.evaluate.schedule_bound import fluid_end_s
from tasks.evaluate.schedule_fill import MORE_WAYS, WAYS, Costs, Piece, Way, fill
from tasks.evaluate.schedule_metrics import latest_infer_ends_s
from tasks.evaluate.schedule_types import PlanOptions, Worker, WorkItem

NEAR = 0.001
"""A plan that ends within this share above the bound is good enough."""
FAR = 0.015
"""One that ends more than this above it may be improved."""
_SMALL = 3_000
"""Tasks x workers up to which there is time for many ways to place long requests."""
_LARGE = 60_000
"""Above this there is time for few; with so many workers a request is short beside the whole."""
_HALVINGS = 7
"""Of the range in which the earliest end is searched."""
_EARLY = (1.0, 1.02, 1.1, 1.3)
"""How much later than at best all inference may end, before the metrics alone set its deadlines."""


class Search:
    """Looks for the earliest end by which everything fits.

    `chains` says which metrics follow one another on a core; None: as if each had a core to itself.
    """

    def __init__(
        self,
        items: Sequence[WorkItem],
        workers: Sequence[Worker],
        options: PlanOptions,
        chains: Sequence[Sequence[int]] | None,
    ) -> None:
        self._items = items
        self._ready_s = [worker.ready_s for worker in workers]
        self._costs = Costs.of(options)
        self._size = len(items) * len(workers)
        self._ways: tuple[Way, ...] = WAYS if self._size <= _LARGE else WAYS[:1]
        self._chains = chains
        work_s = sum(item.infer_s for item in items) * (1 + self._costs.per_s)
        overhead_s = options.shard_overhead_s * (len(items) / len(workers) + 1)
        self._infer_s = fluid_end_s(work_s, sorted(self._ready_s)) + overhead_s

    def earliest(self, bound_s: float) -> list[list[Piece]]:
        """The pieces of the earliest end that is found."""
        found = self._as_early(bound_s * (1 + NEAR))
        if found is not None:
            return found
        scale_s = max(bound_s, self._infer_s, 1e-6)  # The bound is 0 where only overheads are left.
        low_s, high_s = bound_s * (1 + NEAR), bound_s + 0.05 * scale_s
        while self._fits(high_s) is None:
            low_s, high_s = high_s, bound_s + 2 * (high_s - bound_s)
        end_s = self._bisected(low_s, high_s)
        if end_s > bound_s * (1 + FAR) and self._size <= _SMALL:
            # Worth more attempts: long requests can be packed in many ways.
            self._ways = WAYS + MORE_WAYS
            end_s = self._bisected(bound_s * (1 + NEAR), end_s)
        found = self._as_early(end_s)
        assert found is not None
        return found

    def _bisected(self, low_s: float, high_s: float) -> float:
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2
            if self._fits(middle_s) is None:
                low_s = middle_s
            else:
                high_s = middle_s
        return high_s

    def _as_early(self, end_s: float) -> list[list[Piece]] | None:
        """Pieces for this end, inferred as early as is easy: workers are then free for others, and
        scores come sooner, also where a long metric would give them time."""
        for early in _EARLY:
            found = self._fits(end_s, self._infer_s * early * (1 + NEAR))
            if found is not None:
                return found
        return self._fits(end_s)

    def _fits(self, end_s: float, infer_end_s: float = math.inf) -> list[list[Piece]] | None:
        latest_s = latest_infer_ends_s(self._items, self._chains, end_s)
        deadlines_s = [min(latest, infer_end_s, end_s) for latest in latest_s]
        return fill(self._items, self._ready_s, deadlines_s, self._costs, self._ways)
