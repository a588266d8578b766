"""In which order tasks should go through both stages, where cores are fewer than metrics.

All workers count as one machine here, so many times faster: a task's inference follows the one before,
its metric takes the first core that is free. The order is improved by moving one task at a time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence

from tasks.evaluate.schedule_bound import johnson_order
from tasks.evaluate.schedule_types import WorkItem

_EVALUATIONS = 300_000
"""Tasks whose place is computed again, altogether: how long the order is improved."""
_MOST_MOVES = 4_000
_SLOPES = (1, 4, 16, 64)


class Sequencer:
    """Evaluates and improves orders of `items`, given as positions."""

    def __init__(
        self, items: Sequence[WorkItem], workers: int, core_ready_s: Sequence[float], start_s: float
    ) -> None:
        self._items = items
        self._workers = workers
        self._cores_s = sorted(core_ready_s)
        self._start_s = start_s
        self._infer_s = [item.infer_s / workers for item in items]
        self._parts_s = [item.metric_s / item.metric_parts for item in items]

    def end_s(self, order: Sequence[int]) -> float:
        """When the last metric ends."""
        now_s, cores = self._start_s, list(self._cores_s)
        for at in order:
            now_s += self._infer_s[at]
            part_s = self._parts_s[at]
            if part_s > 0:
                for _ in range(self._items[at].metric_parts):
                    heapq.heapreplace(cores, max(now_s, cores[0]) + part_s)
        return max(now_s, *cores)

    def best_order(self, bound_s: float) -> list[int]:
        """The best order found; improved until it meets the bound or the time is up."""
        best = min(self._first_orders(), key=self.end_s)
        best_s = self.end_s(best)
        draw = random.Random(len(best))  # noqa: S311 (no secret; the same in each process)
        for _ in range(min(_EVALUATIONS // max(len(best), 1), _MOST_MOVES)):
            if best_s <= bound_s or len(best) < 2:
                break
            moved = list(best)
            task = moved.pop(draw.randrange(len(moved)))
            moved.insert(draw.randrange(len(moved) + 1), task)
            moved_s = self.end_s(moved)
            if moved_s <= best_s:
                best, best_s = moved, moved_s
        return best

    def chains(self, order: Sequence[int]) -> list[list[int]]:
        """Each core's metrics one after another, as this order deals them out."""
        cores = [(ready_s, core) for core, ready_s in enumerate(self._cores_s)]
        chains: list[list[int]] = [[] for _ in cores]
        now_s = self._start_s
        for at in order:
            now_s += self._infer_s[at]
            if self._parts_s[at] > 0:
                for _ in range(self._items[at].metric_parts):
                    free_s, core = cores[0]
                    chains[core].append(at)
                    heapq.heapreplace(cores, (max(now_s, free_s) + self._parts_s[at], core))
        return chains

    def _first_orders(self) -> Iterator[list[int]]:
        positions = range(len(self._items))
        yield sorted(positions, key=lambda at: -self._parts_s[at])
        yield johnson_order(self._items, self._workers, len(self._cores_s))
        for weight in _SLOPES:
            slopes = [self._parts_s[at] - weight * self._infer_s[at] for at in positions]
            yield sorted(positions, key=slopes.__getitem__, reverse=True)
