"""Plans do all work once, keep the order of the stages, and end close to a bound that is really one."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import EvaluationError
from configs.rundir import read_record, write_record
from tasks.evaluate.schedule import (
    PlanOptions,
    SchedulePlan,
    Worker,
    WorkItem,
    plan_shards,
)
from tasks.evaluate.schedule_again import plan_checkpoints
from tasks.evaluate.schedule_bound import lower_bound
from tasks.evaluate.schedule_bound_packed import packed_bound_s
from tasks.evaluate.schedule_bound_patterns import patterns_bound_s
from tasks.evaluate.simulation_workload import read_benchmarks

READY_S = 5.0


def workers(count: int, ready_s: float = READY_S) -> list[Worker]:
    return [Worker(f"gpu{at}", f"node{at // 8}", ready_s) for at in range(count)]


def check(plan: SchedulePlan, items: Sequence[WorkItem]) -> None:
    """All requests once, nothing at the same time on one worker or core, metrics after inference."""
    for item in items:
        shards = sorted((s for s in plan.shards if s.task == item.task), key=lambda s: s.start)
        covered = [position for shard in shards for position in range(shard.start, shard.stop)]
        expected = [
            position
            for start, stop in item.ranges or ((0, item.requests),)
            for position in range(start, stop)
        ]
        assert covered == expected
        inferred_s = max((shard.end_s for shard in shards), default=item.under_way_s)
        metrics = [metric for metric in plan.metrics if metric.task == item.task]
        assert sum(m.end_s - m.start_s for m in metrics) == pytest.approx(item.metric_s, abs=1e-6)
        assert all(metric.start_s >= inferred_s - 1e-6 for metric in metrics)
    ready_s = {worker.name: worker.ready_s for worker in plan.workers}
    for name, queue in plan.queues().items():
        now_s = ready_s[name]
        for shard in queue:
            assert shard.start_s >= now_s - 1e-6
            now_s = shard.end_s
    for core in {metric.core for metric in plan.metrics}:
        own = [metric for metric in plan.metrics if metric.core == core]
        assert all(a.end_s <= b.start_s + 1e-6 for a, b in itertools.pairwise(own))
        assert core < plan.cpu_cores
    ends = [shard.end_s for shard in plan.shards] + [metric.end_s for metric in plan.metrics]
    assert plan.makespan_s == pytest.approx(max(ends, default=0.0))
    assert plan.makespan_s >= plan.lower_bound_s * (1 - 1e-9)


item_lists = st.lists(
    st.builds(
        lambda requests, infer_s, metric_s, parts: (requests, infer_s, metric_s, parts),
        st.integers(0, 40),
        st.floats(0, 1000),
        st.one_of(st.just(0.0), st.floats(0, 300)),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=12,
)


@given(item_lists, st.integers(1, 9), st.integers(1, 6), st.floats(0, 2), st.floats(0.5, 100))
@settings(max_examples=60, deadline=None)
def test_any_work_is_planned_once(
    rows: list[tuple[int, float, float, int]],
    gpus: int,
    cores: int,
    overhead_s: float,
    longest_s: float,
) -> None:
    items = [
        WorkItem(f"task{at}", requests, infer_s if requests else 0.0, metric_s, parts)
        for at, (requests, infer_s, metric_s, parts) in enumerate(rows)
    ]
    options = PlanOptions(shard_overhead_s=overhead_s, max_shard_s=longest_s, min_shard_s=0.1)
    plan = plan_shards(items, workers(gpus), cpu_cores=cores, options=options)
    check(plan, items)
    assert plan == plan_shards(items, workers(gpus), cpu_cores=cores, options=options)


def adversarial() -> dict[str, list[WorkItem]]:
    draw = random.Random(7)

    def usual(number: int) -> WorkItem:
        seconds = draw.lognormvariate(5, 1.3)
        return WorkItem(
            f"usual{number}", draw.randint(100, 20_000), seconds, draw.choice([0.0, 5.0, 40.0])
        )

    usuals = [usual(number) for number in range(62)]
    return {
        "one giant metric": [*usuals, WorkItem("giant", 800, 900.0, 7200.0)],
        "one huge task": [*usuals, WorkItem("huge", 100_000, 100_000.0, 10.0)],
        "no metrics": [WorkItem(item.task, item.requests, item.infer_s, 0.0) for item in usuals],
        "only metrics count": [
            WorkItem(item.task, item.requests, 0.0, item.infer_s) for item in usuals
        ],
        "all tiny": [WorkItem(f"tiny{at}", 20, 0.05, 0.01) for at in range(200)],
        "few tasks": [WorkItem("one", 5000, 800.0, 30.0), WorkItem("two", 64, 300.0, 0.0)],
        "a single request": [WorkItem("single", 1, 500.0, 100.0)],
        "requests that cannot be cut": [
            WorkItem(f"whole{at}", 1, draw.uniform(5, 300), draw.uniform(0, 100))
            for at in range(63)
        ],
        "long metrics everywhere": [
            WorkItem(item.task, item.requests, item.infer_s, item.infer_s * draw.uniform(0.5, 2))
            for item in usuals
        ],
        "all alike": [WorkItem(f"same{at}", 100, 100.0, 100.0) for at in range(63)],
    }


@pytest.mark.parametrize("nodes", [1, 4, 32])
@pytest.mark.parametrize("name", list(adversarial()))
def test_plans_end_within_five_percent_of_the_bound(name: str, nodes: int) -> None:
    items = adversarial()[name]
    plan = plan_shards(items, workers(8 * nodes), cpu_cores=64 * nodes)
    check(plan, items)
    assert plan.makespan_s <= 1.05 * plan.lower_bound_s


@pytest.mark.parametrize(("gpus", "cores"), [(2, 2), (8, 4), (8, 1), (3, 8)])
def test_metrics_that_wait_for_cores_are_planned_too(gpus: int, cores: int) -> None:
    draw = random.Random(gpus)
    items = [
        WorkItem(
            f"task{at}", draw.randint(20, 500), draw.uniform(5, 60), draw.choice([0.5, 5.0, 40.0])
        )
        for at in range(20)
    ]
    plan = plan_shards(items, workers(gpus), cpu_cores=cores)
    check(plan, items)
    assert plan.makespan_s <= 1.05 * plan.lower_bound_s


def best_makespan_s(items: Sequence[WorkItem], gpus: int, cores_s: Sequence[float]) -> float:
    """The best of all plans, by trying each assignment and each order of requests and metrics."""
    requests = [at for at, item in enumerate(items) for _ in range(item.requests)]
    best_s = float("inf")
    for order in set(itertools.permutations(requests)):
        for places in itertools.product(range(gpus), repeat=len(order)):
            loads, ends = [READY_S] * gpus, [0.0] * len(items)
            for at, place in zip(order, places, strict=True):
                loads[place] += items[at].request_s
                ends[at] = max(ends[at], loads[place])
            for sequence in itertools.permutations(range(len(items))):
                free = list(cores_s)
                for at in sequence:
                    if not items[at].metric_s:
                        continue
                    core = free.index(min(free))
                    free[core] = max(free[core], ends[at]) + items[at].metric_s
                used = [end for end, ready in zip(free, cores_s, strict=True) if end > ready]
                best_s = min(best_s, max([*used, *ends]))
    return best_s


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_is_not_above_the_best_plan(seed: int) -> None:
    draw = random.Random(seed)
    cores = draw.choice([1, 2, 3])
    items = []
    for at in range(3):
        requests = draw.choice([1, 1, 2])
        metric_s = draw.choice([0.0, 5.0, 12.0, 30.0])
        items.append(WorkItem(f"t{at}", requests, requests * draw.uniform(1, 20), metric_s))
    ready_s = [draw.uniform(0, 60) for _ in range(cores)]
    busy_s = best_makespan_s(items, 2, ready_s)
    assert lower_bound(items, workers(2), cores, ready_s).total_s <= busy_s + 1e-9
    busy = plan_shards(items, workers(2), cpu_cores=cores, core_ready_s=ready_s)
    assert busy_s * (1 - 1e-9) <= busy.makespan_s <= 1.25 * busy_s
    best_s = best_makespan_s(items, 2, [0.0] * cores)
    bound_s = lower_bound(items, workers(2), cores).total_s
    assert bound_s <= best_s + 1e-9
    assert packed_bound_s(items, workers(2), cores, bound_s, 2 * best_s) <= best_s * (1 + 1e-6)
    assert patterns_bound_s(items, workers(2), bound_s, 2 * best_s) <= best_s * (1 + 1e-6)
    plan = plan_shards(items, workers(2), cpu_cores=cores)
    assert best_s * (1 - 1e-9) <= plan.makespan_s <= 1.25 * best_s


def test_workers_that_come_later_get_less() -> None:
    late = [*workers(4), Worker("late", "node9", READY_S + 100.0)]
    item = WorkItem("task", 1000, 1000.0, 0.0)
    plan = plan_shards([item], late, cpu_cores=1)
    check(plan, [item])
    assert plan.makespan_s <= 1.01 * ((1000 + 4 * READY_S + READY_S + 100) / 5)


def test_checkpoints_follow_one_another_on_the_same_workers() -> None:
    items = [WorkItem("a", 100, 80.0, 50.0), WorkItem("b", 100, 40.0, 0.0)]
    plans = plan_checkpoints(
        [items, items, items], workers(2), cpu_cores=2, stage_s=4.0, load_s=1.0
    )
    for plan in plans:
        check(plan, items)
    for before, after in itertools.pairwise(plans):
        ends = {name: queue[-1].end_s for name, queue in before.queues().items() if queue}
        for worker in after.workers:
            assert worker.ready_s >= ends.get(worker.name, 0.0) + 1.0
    # The metric of one runs while the next is inferred.
    assert plans[-1].makespan_s < 3 * plans[0].makespan_s - 50


@pytest.mark.parametrize(("checkpoints", "cores", "most_calls"), [(200, 64, 50), (60, 16, 80)])
def test_many_checkpoints_of_63_tasks_take_work_in_proportion(
    checkpoints: int, cores: int, most_calls: int
) -> None:
    """Counted in calls of the planner's functions, which do not depend on the machine. Where cores are
    few, they are busy with the checkpoints before: only a bound that knows this ends the search."""
    items = [task.item for task in read_benchmarks(63)]
    calls, before = 0, sys.getprofile()

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and Path(frame.f_code.co_filename).name.startswith("schedule")

    def planned(checkpoints: int) -> tuple[list[SchedulePlan], int]:
        nonlocal calls
        calls = 0
        sys.setprofile(count)
        try:
            plans = plan_checkpoints(
                [items] * checkpoints, workers(64), cpu_cores=cores, stage_s=4.0, load_s=1.0
            )
        finally:
            sys.setprofile(before)
        return plans, calls

    _, calls_of_few = planned(checkpoints // 4)
    plans, calls_of_all = planned(checkpoints)
    assert all(plan.makespan_s <= 1.002 * plan.lower_bound_s for plan in plans)
    assert len(plans) == checkpoints
    assert calls_of_few < calls_of_all < 4.4 * calls_of_few
    assert calls_of_all < most_calls * sum(len(plan.shards) for plan in plans)
    check(plans[0], items)
    check(plans[-1], items)
    inferred_s = sum(item.infer_s for item in items) / 64
    assert plans[-1].infer_end_s < 1.02 * checkpoints * (inferred_s + READY_S)


@pytest.mark.parametrize(
    "values", [(10, -1.0, 0.0), (10, 1.0, float("nan")), (10, float("inf"), 0.0), (-1, 0.0, 0.0)]
)
def test_impossible_work_is_refused(values: tuple[int, float, float]) -> None:
    with pytest.raises(EvaluationError, match="'bad'"):
        WorkItem("bad", *values)


def test_impossible_machines_are_refused() -> None:
    with pytest.raises(EvaluationError, match="0 workers"):
        plan_shards([WorkItem("a", 1, 1.0, 0.0)], [], cpu_cores=1)
    with pytest.raises(EvaluationError, match="twice"):
        plan_shards([WorkItem("a", 1, 1.0, 0.0)] * 2, workers(1), cpu_cores=1)


def test_overheads_alone_are_planned() -> None:
    """Requests that take no time, on workers that are ready: the bound is 0, the plan is not."""
    items = [WorkItem("instant", 10, 0.0, 0.0)]
    options = PlanOptions(shard_overhead_s=1.0)
    plan = plan_shards(items, workers(2, ready_s=0.0), cpu_cores=1, options=options)
    check(plan, items)
    assert (plan.lower_bound_s, plan.makespan_s) == (0.0, 1.0)
    assert plan_shards([], workers(1), cpu_cores=1).makespan_s == 0.0


def test_a_plan_is_a_file(tmp_path: Path) -> None:
    items = [WorkItem("a", 10, 20.0, 3.0), WorkItem("b", 5, 1.0, 0.0)]
    plan = plan_shards(items, workers(2), cpu_cores=1)
    write_record(tmp_path / "schedule.json", plan)
    assert read_record(tmp_path / "schedule.json", SchedulePlan) == plan
