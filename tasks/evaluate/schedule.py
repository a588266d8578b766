"""Plans one evaluation: which worker computes which slice of which task, and when metrics run.

    plan = plan_shards(items, workers, cpu_cores=64)

Two stages: inference, which can be cut over GPUs, and a metric a task, on CPU cores, once the task's
last request is answered. Deterministic. The method and the bound are in docs/evaluation-planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from configs.errors import EvaluationError
from tasks.evaluate.schedule_bound import fluid_end_s, johnson_order, lower_bound
from tasks.evaluate.schedule_bound_packed import packed_bound_s
from tasks.evaluate.schedule_cut import cut_pieces, infer_ends_s
from tasks.evaluate.schedule_fill import MORE_WAYS, WAYS, Costs, Piece, Way, fill
from tasks.evaluate.schedule_metrics import latest_infer_ends_s, run_metrics
from tasks.evaluate.schedule_types import (
    PlannedMetric,
    PlannedShard,
    PlanOptions,
    SchedulePlan,
    Worker,
    WorkItem,
)

__all__ = [
    "PlanOptions",
    "PlannedMetric",
    "PlannedShard",
    "SchedulePlan",
    "WorkItem",
    "Worker",
    "plan_shards",
]

_NEAR = 0.001
"""A plan that ends within this share above the bound is good enough."""
_FAR = 0.015
"""One that ends more than this above it may be improved."""
_SMALL = 3_000
"""Tasks x workers up to which there is time for many ways to place long requests."""
_LARGE = 20_000
"""Above this there is time for few; with so many workers a request is short beside the whole."""
_HALVINGS = 7
"""Of the range in which the earliest end is searched."""
_EARLY = (1.0, 1.02, 1.1, 1.3)
"""How much later than at best all inference may end, before the metrics alone set its deadlines."""


def plan_shards(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    *,
    cpu_cores: int,
    options: PlanOptions | None = None,
    core_ready_s: Sequence[float] = (),
) -> SchedulePlan:
    """Plan `items` on the workers that are there now; `core_ready_s` says when cores become free."""
    options = options or PlanOptions()
    _check(items, workers, cpu_cores)
    cores = list(core_ready_s) or [0.0] * cpu_cores
    bound = lower_bound(items, workers, cpu_cores).total_s
    pieces = _Search(items, workers, cpu_cores, options).earliest(bound)
    shards = cut_pieces(items, workers, pieces, options)
    ends_s = infer_ends_s(items, shards)
    metrics = run_metrics(items, ends_s, cores)
    infer_end_s = max(ends_s, default=0.0)
    makespan_s = max([infer_end_s, *(metric.end_s for metric in metrics)])
    if makespan_s > bound * (1 + _FAR):
        bound = packed_bound_s(items, workers, cpu_cores, bound, makespan_s)
    return SchedulePlan(
        shards=shards,
        metrics=metrics,
        workers=list(workers),
        cpu_cores=cpu_cores,
        infer_end_s=infer_end_s,
        makespan_s=makespan_s,
        lower_bound_s=bound,
    )


def _check(items: Sequence[WorkItem], workers: Sequence[Worker], cpu_cores: int) -> None:
    if len({item.task for item in items}) != len(items):
        raise EvaluationError("a task is given to the planner twice: give each one name")
    if len({worker.name for worker in workers}) != len(workers):
        raise EvaluationError("a worker is given to the planner twice: give each one name")
    if not workers or cpu_cores < 1:
        raise EvaluationError(
            f"nothing can be planned on {len(workers)} workers and {cpu_cores} CPU cores: "
            "at least one of each is needed"
        )


class _Search:
    """Looks for the earliest end by which everything fits."""

    def __init__(
        self,
        items: Sequence[WorkItem],
        workers: Sequence[Worker],
        cpu_cores: int,
        options: PlanOptions,
    ) -> None:
        self._items = items
        self._ready_s = [worker.ready_s for worker in workers]
        self._cpu_cores = cpu_cores
        self._costs = Costs.of(options)
        self._size = len(items) * len(workers)
        self._ways: tuple[Way, ...] = WAYS if self._size <= _LARGE else WAYS[:1]
        self._orders = list(_orders(items, len(workers), cpu_cores))
        work_s = sum(item.infer_s for item in items) * (1 + self._costs.per_s)
        overhead_s = options.shard_overhead_s * (len(items) / len(workers) + 1)
        self._infer_s = fluid_end_s(work_s, sorted(self._ready_s)) + overhead_s

    def earliest(self, bound_s: float) -> list[list[Piece]]:
        """The pieces of the earliest end that is found."""
        found = self._as_early(bound_s * (1 + _NEAR))
        if found is not None:
            return found
        high = 0.05
        while self._fits(bound_s * (1 + high)) is None:
            high *= 2
        slack = self._least_slack(bound_s, _NEAR, high)
        if (
            slack > _FAR and self._size <= _SMALL
        ):  # Worth more attempts: long requests can be packed in many ways.
            self._ways = WAYS + MORE_WAYS
            slack = self._least_slack(bound_s, _NEAR, slack)
        found = self._as_early(bound_s * (1 + slack))
        assert found is not None
        return found

    def _least_slack(self, bound_s: float, low: float, high: float) -> float:
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self._fits(bound_s * (1 + middle)) is None:
                low = middle
            else:
                high = middle
        return high

    def _as_early(self, end_s: float) -> list[list[Piece]] | None:
        """Pieces for this end, inferred as early as is easy: workers are then free for others, and
        scores come sooner, also where a long metric would give them time."""
        for early in _EARLY:
            found = self._fits(end_s, self._infer_s * early * (1 + _NEAR))
            if found is not None:
                return found
        return self._fits(end_s)

    def _fits(self, end_s: float, infer_end_s: float = math.inf) -> list[list[Piece]] | None:
        for order in self._orders:
            latest_s = latest_infer_ends_s(self._items, order, self._cpu_cores, end_s)
            deadlines_s = [min(latest, infer_end_s, end_s) for latest in latest_s]
            pieces = fill(self._items, self._ready_s, deadlines_s, self._costs, self._ways)
            if pieces is not None:
                return pieces
        return None


def _orders(items: Sequence[WorkItem], workers: int, cpu_cores: int) -> Iterator[Sequence[int]]:
    """Orders of metrics to try: the longest first and, where cores are few, Johnson's."""
    lengths = [item.metric_s / item.metric_parts for item in items]
    yield sorted(range(len(items)), key=lambda at: -lengths[at])
    if cpu_cores < sum(item.metric_parts for item in items if item.metric_s > 0):
        yield johnson_order(items, workers, cpu_cores)
