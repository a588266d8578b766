"""`overland simulate evaluation`: one evaluation of many tasks, by our plan and by others' policies.

A stage's entry like task.py, but without Prefect: a simulation runs no flow, and a typing mistake must
be answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from configs.errors import InputError
from configs.evaluation_simulation import (
    BoundParts,
    EvaluationSetting,
    EvaluationSimulation,
)
from tasks.evaluate.schedule import plan_shards, sharper_bound_s
from tasks.evaluate.schedule_bound import lower_bound
from tasks.evaluate.schedule_types import PlanOptions, SchedulePlan, Worker, WorkItem
from tasks.evaluate.simulation_policies import opencompass_num_worker, opencompass_size, per_task
from tasks.evaluate.simulation_run import run_plan
from tasks.evaluate.simulation_workload import SimulatedTask, read_benchmarks, read_workload

MOST_NODES = 512
MOST_TASKS_TIMES_NODES = 100_000
"""Beyond this, long requests that cannot be cut would take minutes to place."""


def simulate_evaluation(
    *, nodes: int, tasks: int | None = None, workload: Path | None = None
) -> EvaluationSimulation:
    """Simulate the paper's setting on so many nodes: of the benchmarks the first `tasks`, by default all,
    or those of a `workload` file."""
    if not 1 <= nodes <= MOST_NODES:
        raise InputError(f"--nodes must be from 1 to {MOST_NODES}; it is {nodes}")
    if workload is not None and tasks is not None:
        raise InputError("--tasks chooses among the benchmarks, --workload gives others: give one")
    if workload is not None:
        work = read_workload(workload)
        if len(work) * nodes > MOST_TASKS_TIMES_NODES:
            most = MOST_TASKS_TIMES_NODES // nodes
            raise InputError(
                f"--workload {workload} has {len(work):,} tasks: on {nodes} nodes at most {most:,} "
                "are simulated"
            )
        return simulate_policies(work, EvaluationSetting(nodes=nodes), str(workload))
    benchmarks = read_benchmarks(tasks)
    name = f"the first {len(benchmarks)} of the public benchmarks in benchmark_sizes.yaml"
    return simulate_policies(benchmarks, EvaluationSetting(nodes=nodes), name)


def simulate_policies(
    tasks: Sequence[SimulatedTask], setting: EvaluationSetting, workload: str
) -> EvaluationSimulation:
    """The same tasks on the same machines under each policy."""
    items = [task.item for task in tasks]
    plan = plan_evaluation(tasks, setting)
    ours = run_plan(items, plan, setting)
    size, size_default = opencompass_size(tasks, setting)
    num_worker, num_worker_default = opencompass_num_worker(tasks, setting)
    others = {
        "per_task": per_task(tasks, setting),
        "opencompass_size": size,
        "opencompass_num_worker": num_worker,
    }
    defaults = {
        "opencompass_size_default": size_default,
        "opencompass_num_worker_default": num_worker_default,
    }
    parts, bound_s = _bound(items, setting, ours.makespan_s)
    return EvaluationSimulation(
        nodes=setting.nodes,
        tasks=len(tasks),
        requests=sum(item.requests for item in items),
        infer_s=sum(item.infer_s for item in items),
        metric_s=sum(item.metric_s for item in items),
        longest_metric_s=max(item.metric_s for item in items),
        ours_s=ours.makespan_s,
        per_task_s=others["per_task"].makespan_s,
        opencompass_size_s=size.makespan_s,
        opencompass_num_worker_s=num_worker.makespan_s,
        lower_bound_s=bound_s,
        over_bound=ours.makespan_s / bound_s - 1,
        speedup={name: result.makespan_s / ours.makespan_s for name, result in others.items()},
        speedup_at_bound={name: result.makespan_s / bound_s for name, result in others.items()},
        shards=len(plan.shards),
        bound=parts,
        policies={"ours": ours, **others, **{k: v for k, v in defaults.items() if v is not None}},
        setting=setting,
        workload=workload,
    )


def _bound(
    items: Sequence[WorkItem], setting: EvaluationSetting, end_s: float
) -> tuple[BoundParts, float]:
    """Of every policy, and of any that stages the model otherwise: no GPU has it before it was read from
    storage once, and no process before it has started; then all may have it at once."""
    ready_s = max(setting.process_start_s, setting.stage_s)
    workers = [Worker(f"gpu{gpu}", "", ready_s) for gpu in range(setting.gpus)]
    parts = lower_bound(items, workers, setting.cpu_cores)
    bound_s = sharper_bound_s(items, workers, setting.cpu_cores, parts.total_s, end_s)
    return BoundParts(**parts.model_dump()), bound_s


def plan_evaluation(
    tasks: Sequence[SimulatedTask], setting: EvaluationSetting, options: PlanOptions | None = None
) -> SchedulePlan:
    """Our plan: each node stages the model once, each of its GPUs loads it from there once."""
    ready_s = max(setting.process_start_s, setting.stage_s) + setting.load_s
    workers = [
        Worker(f"node{node}-gpu{gpu}", f"node{node}", ready_s)
        for node in range(setting.nodes)
        for gpu in range(setting.gpus_per_node)
    ]
    options = options or PlanOptions(shard_overhead_s=setting.shard_overhead_s)
    items = [task.item for task in tasks]
    return plan_shards(items, workers, cpu_cores=setting.cpu_cores, options=options)
