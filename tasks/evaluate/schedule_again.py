"""Plans again when workers come and go, and plans many checkpoints one after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tasks.evaluate.schedule import plan_shards
from tasks.evaluate.schedule_board import ShardBoard, ranges_left
from tasks.evaluate.schedule_types import PlanOptions, SchedulePlan, Worker, WorkItem


def items_left(
    items: Sequence[WorkItem],
    plan: SchedulePlan,
    board: ShardBoard,
    running_until_s: Mapping[str, float],
    scored: Collection[str] = (),
) -> list[WorkItem]:
    """What is left of `items`: requests that nobody has done or computes, and metrics that are not done.

    `running_until_s` says, for each worker that computes a shard of the plan, when it is expected to be
    done, on the clock of the plan that is made next.
    """
    running = board.running
    ranges = ranges_left(plan.shards, board.done | running.keys())
    under_way_s: dict[str, float] = {}
    for (task, _, _), worker in running.items():
        until_s = running_until_s.get(worker, 0.0)
        under_way_s[task] = max(under_way_s.get(task, 0.0), until_s)
    left = []
    for item in items:
        own = tuple(ranges.get(item.task, ()))
        if item.task in scored:
            continue
        requests = sum(stop - start for start, stop in own)
        left.append(
            replace(
                item,
                requests=requests,
                infer_s=requests * item.request_s,
                ranges=own,
                under_way_s=under_way_s.get(item.task, 0.0),
            )
        )
    return left


def plan_checkpoints(
    checkpoints: Sequence[Sequence[WorkItem]],
    workers: Sequence[Worker],
    *,
    cpu_cores: int,
    stage_s: float = 0.0,
    load_s: float = 0.0,
    options: PlanOptions | None = None,
) -> list[SchedulePlan]:
    """A plan for each checkpoint, in this order, each on all workers as they become free.

    A worker loads the next checkpoint (`load_s`) when it is done with the one before. A node stages one
    after another (`stage_s` each) while its workers compute, so that a worker seldom waits for that.
    """
    plans: list[SchedulePlan] = []
    free_s = {worker.name: worker.ready_s for worker in workers}
    cores_s = [0.0] * cpu_cores
    for number, items in enumerate(checkpoints):
        if number:
            staged_s = (number + 1) * stage_s
            workers = [
                replace(worker, ready_s=max(free_s[worker.name], staged_s) + load_s)
                for worker in workers
            ]
        plan = plan_shards(
            items, workers, cpu_cores=cpu_cores, core_ready_s=cores_s, options=options
        )
        for shard in plan.shards:
            free_s[shard.worker] = max(free_s[shard.worker], shard.end_s)
        for metric in plan.metrics:
            cores_s[metric.core] = max(cores_s[metric.core], metric.end_s)
        plans.append(plan)
    return plans
