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
from tasks.evaluate.schedule import plan_shards
from tasks.evaluate.schedule_bound import lower_bound
from tasks.evaluate.schedule_types import PlanOptions, SchedulePlan, Worker
from tasks.evaluate.simulation_policies import opencompass_num_worker, opencompass_size, per_task
from tasks.evaluate.simulation_run import run_plan
from tasks.evaluate.simulation_workload import SimulatedTask, read_benchmarks, read_workload

MOST_NODES = 512


def simulate_evaluation(
    *, nodes: int, tasks: int, workload: Path | None = None
) -> EvaluationSimulation:
    """Simulate the paper's setting on so many nodes; `workload` gives other tasks than the benchmarks."""
    if not 1 <= nodes <= MOST_NODES:
        raise InputError(f"--nodes must be from 1 to {MOST_NODES}; it is {nodes}")
    if workload is not None:
        return simulate_policies(
            read_workload(workload), EvaluationSetting(nodes=nodes), str(workload)
        )
    name = f"the first {tasks} of the public benchmarks in benchmark_sizes.yaml"
    return simulate_policies(read_benchmarks(tasks), EvaluationSetting(nodes=nodes), name)


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
    bound_s = plan.lower_bound_s
    parts = lower_bound(items, plan.workers, setting.cpu_cores)
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
        bound=BoundParts(**parts.model_dump()),
        policies={"ours": ours, **others, **{k: v for k, v in defaults.items() if v is not None}},
        setting=setting,
        workload=workload,
    )


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
