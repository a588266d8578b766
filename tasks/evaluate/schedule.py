"""Plans one evaluation: which worker computes which slice of which task, and when metrics run.

    plan = plan_shards(items, workers, cpu_cores=64)

Two stages: inference, which can be cut over GPUs, and a metric a task, on CPU cores, once the task's
last request is answered. Deterministic. The method and the bound are in docs/evaluation-planning.md.
"""

from __future__ import annotations

from collections.abc import Sequence

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
) -> SchedulePlan:
    """Plan `items` on the workers that are there now."""
    raise NotImplementedError
