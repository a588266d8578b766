"""schedule.json: who is to answer which shard when, as expected; written anew when workers come and go.

Only what nobody has begun is in a plan's shards; what is under way stands beside it. A worker looks at
the file before each shard (:mod:`tasks.evaluate.turns`), so a new plan counts at once.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.records import Record
from configs.rundir import EvaluationDir, read_record
from tasks.evaluate.plan import EvaluationPlan, TaskPlan
from tasks.evaluate.schedule_metrics import run_metrics
from tasks.evaluate.schedule_types import PlannedMetric, SchedulePlan, Worker, WorkItem
from tasks.evaluate.times import Done

_MIN_SPEED_S = 1.0
"""Measured times say something about those to come when they are of more than this together."""


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """A shard on a worker. Times are seconds from when the plan was made."""

    shard: str
    task: str
    worker: str
    start_s: float
    end_s: float


class Replanned(Record):
    """An earlier plan, and why another one took its place."""

    made_at: float
    infer_end_s: float
    makespan_s: float
    why: str


class LivePlan(Record):
    """The plan for what is left."""

    plan_sha256: str
    """Of the plan.json whose shards these are."""
    made_at: float
    workers: list[Worker]
    under_way: list[PlannedWork]
    """Begun before, and not planned again."""
    shards: list[PlannedWork]
    """Each worker's in its order; workers one after another."""
    metrics: list[PlannedMetric]
    infer_end_s: float
    makespan_s: float
    lower_bound_s: float | None = None
    """Of the first plan: no plan can end before it."""
    earlier: tuple[Replanned, ...] = ()

    @property
    def worker_names(self) -> set[str]:
        return {worker.name for worker in self.workers}


def live_plan_path(evaluation: EvaluationDir) -> Path:
    """Where the newest one is."""
    return evaluation.path / "schedule.json"


def read_live_plan(evaluation: EvaluationDir, plan: EvaluationPlan) -> LivePlan | None:
    """The newest one, if it is of this plan."""
    live = read_record(live_plan_path(evaluation), LivePlan)
    return live if live is not None and live.plan_sha256 == plan.sha256() else None


def first_live_plan(
    plan: EvaluationPlan, schedule: SchedulePlan, workers: Mapping[str, Worker]
) -> LivePlan:
    """As planned; `workers` says who is meant by the names in the plan."""
    starts = {worker.name: worker.ready_s for worker in workers.values()}
    shards = []
    by_name = {shard.name: (task, shard) for task, shard in plan.shards()}
    for task, shard in (by_name[name] for name in plan.order):
        name = workers[shard.worker].name
        end_s = starts[name] + shard.expected_s
        shards.append(PlannedWork(shard.name, task.task, name, starts[name], end_s))
        starts[name] = end_s
    return LivePlan(
        plan_sha256=plan.sha256(),
        made_at=time.time(),
        workers=list(workers.values()),
        under_way=[],
        shards=sorted(shards, key=lambda s: list(starts).index(s.worker)),
        metrics=schedule.metrics,
        infer_end_s=schedule.infer_end_s,
        makespan_s=schedule.makespan_s,
        lower_bound_s=schedule.lower_bound_s,
    )


@dataclass(frozen=True)
class Rest:
    """What is known when the rest is planned."""

    plan: EvaluationPlan
    left: Sequence[str]
    """Shards that nobody has begun, or whose worker has died."""
    under_way: Mapping[str, tuple[str, float]]
    """Shard -> its worker, and when that has begun it."""
    scored: Sequence[str]
    """Targets that are scored."""
    workers: Sequence[Worker]
    times: Sequence[Done]
    cpu_cores: int


def plan_rest(rest: Rest, earlier: LivePlan | None, why: str) -> LivePlan:
    """Plan anew what is left. Shards stay as they are: what is done of them is found by its name."""
    now = time.time()
    expected_s = _expected_s(rest)
    under_way = []
    free_s = {worker.name: worker.ready_s for worker in rest.workers}
    tasks = {shard.name: task for task, shard in rest.plan.shards()}
    for name, (worker, began_at) in rest.under_way.items():
        end_s = max(0.0, began_at + expected_s[name] - now)
        under_way.append(PlannedWork(name, tasks[name].task, worker, began_at - now, end_s))
        free_s[worker] = max(free_s.get(worker, 0.0), end_s)
    workers = [replace(worker, ready_s=free_s[worker.name]) for worker in rest.workers]
    best: tuple[float, list[PlannedWork], list[PlannedMetric]] | None = None
    for order in _orders(rest, tasks, expected_s):
        shards = _hand_out(order, tasks, expected_s, workers)
        metrics = _metrics(rest, [*under_way, *shards])
        ends_s = [work.end_s for work in [*under_way, *shards]] + [m.end_s for m in metrics]
        if best is None or max(ends_s) < best[0]:
            best = max(ends_s), shards, metrics
    assert best is not None
    makespan_s, shards, metrics = best
    return LivePlan(
        plan_sha256=rest.plan.sha256(),
        made_at=now,
        workers=workers,
        under_way=under_way,
        shards=shards,
        metrics=metrics,
        infer_end_s=max(work.end_s for work in [*under_way, *shards]),
        makespan_s=makespan_s,
        earlier=() if earlier is None else (*earlier.earlier, _replanned(earlier, why)),
    )


def _replanned(earlier: LivePlan, why: str) -> Replanned:
    return Replanned(
        made_at=earlier.made_at,
        infer_end_s=earlier.infer_end_s,
        makespan_s=earlier.makespan_s,
        why=why,
    )


def _expected_s(rest: Rest) -> dict[str, float]:
    """Shard -> how long it will take, by what its task's shards, or all, have taken so far."""
    shards = {shard.name: (task, shard) for task, shard in rest.plan.shards()}
    done = {t.name: t.time_s for t in rest.times if t.kind == "shard" and t.name in shards}
    of_task: dict[str, list[tuple[float, float]]] = {}
    for name, time_s in done.items():
        task, shard = shards[name]
        of_task.setdefault(task.task, []).append((time_s, shard.expected_s))
    over_all = _factor((pair for pairs in of_task.values() for pair in pairs), 1.0)
    factors = {task: _factor(pairs, over_all) for task, pairs in of_task.items()}
    return {
        name: shard.expected_s * factors.get(task.task, over_all)
        for name, (task, shard) in shards.items()
    }


def _factor(pairs: Iterable[tuple[float, float]], otherwise: float) -> float:
    """By which expectations were wrong."""
    known = [(took_s, expected_s) for took_s, expected_s in pairs if expected_s > 0]
    took_s, expected_s = sum(p[0] for p in known), sum(p[1] for p in known)
    return took_s / expected_s if took_s > _MIN_SPEED_S else otherwise


def _orders(
    rest: Rest, tasks: Mapping[str, TaskPlan], expected_s: Mapping[str, float]
) -> list[list[str]]:
    """Before which metrics, then the longest first; and what, with its metric, takes longest first."""
    return [
        sorted(rest.left, key=lambda name: (-tasks[name].metric_s, -expected_s[name], name)),
        sorted(rest.left, key=lambda name: (-tasks[name].metric_s - expected_s[name], name)),
    ]


def _hand_out(
    order: Sequence[str],
    tasks: Mapping[str, TaskPlan],
    expected_s: Mapping[str, float],
    workers: Sequence[Worker],
) -> list[PlannedWork]:
    """Give each shard to the worker that is free first."""
    free = [(worker.ready_s, number) for number, worker in enumerate(workers)]
    heapq.heapify(free)
    queues: list[list[PlannedWork]] = [[] for _ in workers]
    for name in order:
        start_s, number = free[0]
        end_s = start_s + expected_s[name]
        work = PlannedWork(name, tasks[name].task, workers[number].name, start_s, end_s)
        queues[number].append(work)
        heapq.heapreplace(free, (end_s, number))
    return [work for queue in queues for work in queue]


def _metrics(rest: Rest, works: Sequence[PlannedWork]) -> list[PlannedMetric]:
    """Those of tasks that are not scored yet."""
    ends_s: dict[str, float] = {}
    for work in works:
        ends_s[work.task] = max(ends_s.get(work.task, 0.0), work.end_s)
    items = [
        WorkItem(task.task, requests=0, infer_s=0.0, metric_s=task.metric_s)
        for task in rest.plan.tasks
        if task.target not in rest.scored
    ]
    ready_s = [ends_s.get(item.task, 0.0) for item in items]
    return run_metrics(items, ready_s, [0.0] * rest.cpu_cores)
