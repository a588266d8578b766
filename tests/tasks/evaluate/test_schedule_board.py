"""The board hands each shard out once, whoever comes and goes; what is done is not planned again."""

from __future__ import annotations

import random

import pytest

from configs.errors import EvaluationError
from configs.evaluation_simulation import EvaluationSetting
from tasks.evaluate.schedule import PlanOptions, SchedulePlan, Worker, WorkItem, plan_shards
from tasks.evaluate.schedule_again import items_left
from tasks.evaluate.schedule_board import ShardBoard
from tasks.evaluate.simulation_run import run_plan

ITEMS = [WorkItem("long", 900, 900.0, 60.0), WorkItem("short", 90, 30.0, 5.0)]


def plan_of(items: list[WorkItem], gpus: int, longest_s: float = 20.0) -> SchedulePlan:
    workers = [Worker(f"gpu{at}", "node0") for at in range(gpus)]
    return plan_shards(items, workers, cpu_cores=8, options=PlanOptions(max_shard_s=longest_s))


def test_a_worker_without_work_takes_from_the_busiest() -> None:
    plan = plan_of(ITEMS, 2)
    board = ShardBoard(plan)
    board.add_worker("new")
    stolen = board.take("new")
    assert stolen is not None
    assert stolen == plan.queues()[stolen.worker][-1]
    assert board.take("gpu0") == plan.queues()["gpu0"][0]


def test_ten_thousand_shards_through_losses_are_done_once_each() -> None:
    draw = random.Random(3)
    items = [WorkItem(f"task{at}", 1000, 1000.0, 1.0) for at in range(100)]
    plan = plan_of(items, 32, longest_s=10.0)
    assert len(plan.shards) >= 10_000
    board = ShardBoard(plan)
    working = {worker.name for worker in plan.workers}
    finished, lost, tasks = [], 0, []
    running = {}
    while board.left:
        worker = draw.choice(sorted(working))
        if worker in running and draw.random() < 0.002:
            assert board.lose_worker(worker) == running.pop(worker)
            lost += 1
            working.remove(worker)
            working.add(f"new{lost}")
        elif worker in running:
            finished.append(running.pop(worker).key)
            if (task := board.finish(worker)) is not None:
                tasks.append(task)
        elif (shard := board.take(worker)) is not None:
            running[worker] = shard
    assert lost
    assert sorted(finished) == sorted(shard.key for shard in plan.shards)
    assert sorted(tasks) == sorted(item.task for item in items)
    assert all(board.is_inferred(item.task) for item in items)


def test_what_is_done_or_under_way_is_not_planned_again() -> None:
    plan = plan_of(ITEMS, 3)
    board = ShardBoard(plan)
    done = [board.take("gpu0"), board.take("gpu1")]
    board.finish("gpu0")
    board.finish("gpu1")
    under_way = board.take("gpu2")
    assert under_way is not None
    left = items_left(ITEMS, plan, board, {"gpu2": 7.0}, scored=())
    fewer = [Worker("gpu2", "node0", ready_s=7.0)]
    again = plan_shards(left, fewer, cpu_cores=2)
    requests = {
        (shard.task, position)
        for shard in [*again.shards, *(s for s in [*done, under_way] if s is not None)]
        for position in range(shard.start, shard.stop)
    }
    assert requests == {(item.task, at) for item in ITEMS for at in range(item.requests)}
    assert sum(s.stop - s.start for s in again.shards) == 990 - sum(
        s.stop - s.start for s in [*done, under_way] if s is not None
    )
    metric = next(m for m in again.metrics if m.task == under_way.task)
    assert metric.start_s >= 7.0
    assert [item.task for item in items_left(ITEMS, plan, board, {}, scored={"long"})] == ["short"]


def test_a_board_starts_from_what_is_done() -> None:
    plan = plan_of(ITEMS, 2)
    board = ShardBoard(plan, done=[shard.key for shard in plan.shards if shard.task == "short"])
    assert board.is_inferred("short")
    assert board.left == sum(shard.task == "long" for shard in plan.shards)


def test_misuse_is_an_error() -> None:
    board = ShardBoard(plan_of(ITEMS, 1))
    with pytest.raises(EvaluationError, match="not given"):
        board.finish("gpu0")
    board.take("gpu0")
    with pytest.raises(EvaluationError, match="while it computes one"):
        board.take("gpu0")


def test_stealing_evens_out_wrong_priors() -> None:
    """Tasks take from half to twice what was expected: workers still end together."""
    draw = random.Random(5)
    items = [WorkItem(f"task{at}", 200, 200.0, 0.0) for at in range(40)]
    factors = {item.task: draw.uniform(0.5, 2.0) for item in items}
    plan = plan_of(items, 8, longest_s=10.0)
    setting = EvaluationSetting(nodes=1)

    def takes_s(shard: object) -> float:
        return factors[shard.task] * (shard.end_s - shard.start_s)  # type: ignore[attr-defined]

    result = run_plan(items, plan, setting, takes_s)
    work_s = sum(factors[item.task] * item.infer_s for item in items)
    alone_s = max(sum(takes_s(s) for s in queue) for queue in plan.queues().values())
    assert result.makespan_s <= work_s / 8 + 2 * 10.0 < alone_s
