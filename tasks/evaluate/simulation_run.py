"""Simulates a plan as the coordinator runs it: workers take shards from the board, metrics follow."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from configs.evaluation_simulation import EvaluationSetting, PolicyResult
from tasks.evaluate.schedule_board import ShardBoard
from tasks.evaluate.schedule_metrics import run_metrics
from tasks.evaluate.schedule_types import PlannedShard, SchedulePlan, WorkItem


def run_plan(
    items: Sequence[WorkItem],
    plan: SchedulePlan,
    setting: EvaluationSetting,
    actual_s: Callable[[PlannedShard], float] | None = None,
) -> PolicyResult:
    """Run it shard by shard; `actual_s` says how long a shard really takes, where priors are wrong."""
    board = ShardBoard(plan)
    inferred_s = {item.task: item.under_way_s for item in items}
    events = [(worker.ready_s, number, worker.name) for number, worker in enumerate(plan.workers)]
    heapq.heapify(events)
    busy: set[str] = set()
    busy_s = end_s = 0.0
    while events:
        now_s, number, worker = heapq.heappop(events)
        if worker in busy:
            busy.remove(worker)
            end_s = max(end_s, now_s)
            if (task := board.finish(worker)) is not None:
                inferred_s[task] = max(inferred_s[task], now_s)
        if (shard := board.take(worker)) is not None:
            takes_s = actual_s(shard) if actual_s else shard.end_s - shard.start_s
            busy.add(worker)
            busy_s += takes_s
            heapq.heappush(events, (now_s + takes_s, number, worker))
    starts_s = {metric.task: metric.start_s for metric in reversed(plan.metrics)}
    metrics = run_metrics(
        items,
        [inferred_s[item.task] for item in items],
        [0.0] * plan.cpu_cores,
        ranks=[starts_s.get(item.task, 0.0) for item in items],
    )
    return PolicyResult(
        makespan_s=max([end_s, *(metric.end_s for metric in metrics)]),
        infer_end_s=end_s,
        loads=setting.nodes,
        gpu_busy_share=busy_s / (len(plan.workers) * end_s) if end_s else 0.0,
        choice="the plan, with work stealing",
    )
