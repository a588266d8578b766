"""Plans one evaluation: which worker computes which slice of which task, and when metrics run.

    plan = plan_shards(items, workers, cpu_cores=64)

Two stages: inference, which can be cut over GPUs, and a metric a task, on CPU cores, once the task's
last request is answered. Deterministic. The method and the bound are in docs/evaluation-planning.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import EvaluationError
from tasks.evaluate.schedule_bound import lower_bound
from tasks.evaluate.schedule_bound_packed import packed_bound_s
from tasks.evaluate.schedule_cut import cut_pieces, infer_ends_s
from tasks.evaluate.schedule_metrics import run_metrics
from tasks.evaluate.schedule_search import FAR, NEAR, Search, orders
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
    bound_s = lower_bound(items, workers, cpu_cores).total_s
    best: SchedulePlan | None = None
    for order in orders(items, len(workers), cpu_cores):
        pieces = Search(items, workers, cpu_cores, options, order).earliest(bound_s)
        shards = cut_pieces(items, workers, pieces, options)
        plan = _timed(items, workers, shards, cores, bound_s)
        if best is None or plan.makespan_s < best.makespan_s:
            best = plan
        if best.makespan_s <= bound_s * (1 + 2 * NEAR):
            break
    assert best is not None
    if best.makespan_s > bound_s * (1 + FAR) and not core_ready_s:
        best = best.model_copy(update={"lower_bound_s": _sharper_s(items, best)})
    return best


def _timed(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    shards: list[PlannedShard],
    cores_s: Sequence[float],
    bound_s: float,
) -> SchedulePlan:
    """The plan of these shards, with its metrics."""
    ends_s = infer_ends_s(items, shards)
    metrics = run_metrics(items, ends_s, cores_s)
    infer_end_s = max(ends_s, default=0.0)
    return SchedulePlan(
        shards=shards,
        metrics=metrics,
        workers=list(workers),
        cpu_cores=len(cores_s),
        infer_end_s=infer_end_s,
        makespan_s=max([infer_end_s, *(metric.end_s for metric in metrics)]),
        lower_bound_s=bound_s,
    )


def _sharper_s(items: Sequence[WorkItem], plan: SchedulePlan) -> float:
    """A bound that knows that long pieces leave gaps; it takes longer to find."""
    end_s = plan.makespan_s
    bound_s = packed_bound_s(items, plan.workers, plan.cpu_cores, plan.lower_bound_s, end_s)
    if end_s <= bound_s * (1 + FAR):
        return bound_s
    from tasks.evaluate.schedule_bound_patterns import patterns_bound_s  # numpy, scipy: seldom

    return patterns_bound_s(items, plan.workers, bound_s, end_s)


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
