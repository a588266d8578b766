"""Plans one evaluation: which worker computes which slice of which task, and when metrics run.

    plan = plan_shards(items, workers, cpu_cores=64)

Two stages: inference, which can be cut over GPUs, and a metric a task, on CPU cores, once the task's
last request is answered. Deterministic. The method and the bound are in docs/evaluation-planning.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from configs.errors import EvaluationError
from tasks.evaluate.schedule_bound import lower_bound
from tasks.evaluate.schedule_bound_packed import packed_bound_s
from tasks.evaluate.schedule_cut import cut_pieces, infer_ends_s
from tasks.evaluate.schedule_metrics import run_metrics
from tasks.evaluate.schedule_search import FAR, NEAR, Search
from tasks.evaluate.schedule_sequence import Sequencer
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
    "sharper_bound_s",
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
    bound_s = lower_bound(items, workers, cpu_cores, cores).total_s
    best = None
    for ranks, chains in _sequences(items, workers, cores, bound_s):
        pieces = Search(items, workers, options, chains).earliest(bound_s)
        plan = _timed(items, workers, cut_pieces(items, workers, pieces, options), cores, ranks)
        if best is None or plan.makespan_s < best.makespan_s:
            best = plan
        if best.makespan_s <= bound_s * (1 + 2 * NEAR):
            break
    assert best is not None
    best = best.model_copy(update={"lower_bound_s": bound_s})
    if not core_ready_s:
        bound_s = sharper_bound_s(items, workers, cpu_cores, bound_s, best.makespan_s)
        best = best.model_copy(update={"lower_bound_s": bound_s})
    return best


def _sequences(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    cores_s: Sequence[float],
    bound_s: float,
) -> Iterator[tuple[list[float] | None, list[list[int]] | None]]:
    """Ranks of metrics, and which follow which, to be tried: as if each metric had a core, and where
    that is not so, a good order through both stages."""
    yield None, None
    if len(cores_s) < sum(item.metric_parts for item in items if item.metric_s > 0):
        start_s = min(worker.ready_s for worker in workers)
        sequencer = Sequencer(items, len(workers), cores_s, start_s)
        order = sequencer.best_order(bound_s)
        ranks = [0.0] * len(items)
        for rank, at in enumerate(order):
            ranks[at] = float(rank)
        yield ranks, sequencer.chains(order)
        yield None, sequencer.chains(order)


def _timed(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    shards: list[PlannedShard],
    cores_s: Sequence[float],
    ranks: Sequence[float] | None,
) -> SchedulePlan:
    """The plan of these shards, with its metrics."""
    ends_s = infer_ends_s(items, shards)
    metrics = run_metrics(items, ends_s, cores_s, ranks)
    infer_end_s = max(ends_s, default=0.0)
    return SchedulePlan(
        shards=shards,
        metrics=metrics,
        workers=list(workers),
        cpu_cores=len(cores_s),
        infer_end_s=infer_end_s,
        makespan_s=max([infer_end_s, *(metric.end_s for metric in metrics)]),
        lower_bound_s=0.0,
    )


def sharper_bound_s(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    cpu_cores: int,
    bound_s: float,
    end_s: float,
) -> float:
    """A bound that knows that long pieces leave gaps, between one and the end of a plan; it takes longer
    to find."""
    if end_s <= bound_s * (1 + FAR):
        return bound_s
    bound_s = packed_bound_s(items, workers, cpu_cores, bound_s, end_s)
    if end_s <= bound_s * (1 + FAR):
        return bound_s
    from tasks.evaluate.schedule_bound_patterns import patterns_bound_s  # numpy, scipy: seldom

    return patterns_bound_s(items, workers, bound_s, end_s)


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
