"""What the benchmark's runs have measured: the work as tasks, the lower bound, and the simulation of each run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from configs.evaluation_simulation import EvaluationSetting
from tasks.evaluate.bench_evaluate_peers import Run, Setup
from tasks.evaluate.plan import EvaluationPlan, TaskPlan
from tasks.evaluate.schedule_types import WorkItem
from tasks.evaluate.simulate_evaluation import plan_evaluation
from tasks.evaluate.simulation_policies import Partition, infer_then_eval, per_task
from tasks.evaluate.simulation_run import run_plan
from tasks.evaluate.simulation_workload import SimulatedTask
from tasks.evaluate.times import Done

_GENERATION_FACTOR = 20  # OpenCompass's


@dataclass(frozen=True)
class TaskTimes:
    """What each task took in one run."""

    infer_s: Mapping[str, float]
    metric_s: Mapping[str, float]


def task_times(run: Run) -> TaskTimes:
    """Of a run with our inference and scoring."""
    assert run.plan is not None
    task_of = {shard.name: task.task for task, shard in run.plan.shards()}
    infer_s: defaultdict[str, float] = defaultdict(float)
    for done in _of_kind(run, "shard"):
        infer_s[task_of[done.name]] += done.time_s
    return TaskTimes(infer_s, {done.name: done.time_s for done in _of_kind(run, "score")})


def least(runs: Sequence[TaskTimes]) -> TaskTimes:
    """The least time of each task in any of them."""
    return _of_each_task(runs, min)


def typical(runs: Sequence[TaskTimes]) -> TaskTimes:
    """The median time of each task."""
    return _of_each_task(runs, statistics.median)


def _of_each_task(
    runs: Sequence[TaskTimes], choose: Callable[[Sequence[float]], float]
) -> TaskTimes:
    first = runs[0]
    return TaskTimes(
        {task: choose([run.infer_s[task] for run in runs]) for task in first.infer_s},
        {task: choose([run.metric_s[task] for run in runs]) for task in first.metric_s},
    )


def simulated_tasks(plan: EvaluationPlan, times: TaskTimes | None = None) -> list[SimulatedTask]:
    """The tasks with these times; without them, only what a partitioner looks at."""
    return [
        SimulatedTask(
            WorkItem(
                task.task,
                task.documents,
                times.infer_s[task.task] if times else 0.0,
                times.metric_s[task.task] if times else 0.0,
            ),
            _cost_factor(task),
        )
        for task in plan.tasks
    ]


def _cost_factor(task: TaskPlan) -> int:
    """Generation, or the number of labels, as OpenCompass's SizePartitioner counts."""
    if task.shards[0].request_type == "generate_until":
        return _GENERATION_FACTOR
    return task.requests // task.documents


def setting_of(
    setup: Setup, *, process_start_s: float = 0.0, load_s: float = 0.0, scorer_start_s: float = 0.0
) -> EvaluationSetting:
    """This machine as one node."""
    size_bytes = setup.storage.size_bytes
    return EvaluationSetting(
        nodes=1,
        gpus_per_node=setup.config.workers,
        cpu_cores_per_node=setup.config.scorers,
        model_bytes=size_bytes,
        storage_bytes_per_s=setup.storage.bytes_per_s,
        host_to_gpu_bytes_per_s=size_bytes / load_s if load_s else float("inf"),
        process_start_s=process_start_s,
        scorer_start_s=scorer_start_s,
    )


def lower_bound_s(
    setup: Setup, plan: EvaluationPlan, times: TaskTimes, others: Sequence[Run]
) -> float:
    """Before which no plan could have ended: with these times, and the quickest start and load of any
    process in the other runs (nobody plans or scores beside those)."""
    starts_s, loads_s = [], []
    for run in others:
        read_at = {job.name: job.read_at for job in run.jobs}
        for done in _of_kind(run, "load"):
            starts_s.append(done.started_at - read_at[done.worker])
            loads_s.append(done.time_s)
    setting = setting_of(setup, process_start_s=min(starts_s), load_s=min(loads_s))
    return plan_evaluation(simulated_tasks(plan, times), setting).lower_bound_s


def partition_setting(setup: Setup, run: Run) -> EvaluationSetting:
    """What a partition's process takes beside reading the model and its slices, and scoring's start."""
    busy_s: defaultdict[str, float] = defaultdict(float)
    for done in _of_kind(run, "shard"):
        busy_s[done.worker] += done.time_s
    inferred_at = max(job.ended_at for job in run.jobs)
    return setting_of(
        setup,
        process_start_s=statistics.mean(job.process_s - busy_s[job.name] for job in run.jobs),
        scorer_start_s=min(done.started_at for done in _of_kind(run, "score")) - inferred_at,
    )


def simulate_partition(
    tasks: Sequence[SimulatedTask], setting: EvaluationSetting, partition: Partition
) -> float:
    """The makespan of a partition."""
    return infer_then_eval(tasks, setting, partition, "").makespan_s


def simulate_ours(setup: Setup, run: Run) -> float:
    """The makespan of our plan, whose workers were ready to load when they were."""
    assert run.plan is not None
    loads = _of_kind(run, "load")
    began_at = run.jobs[0].began_at
    setting = setting_of(
        setup,
        process_start_s=statistics.mean(done.started_at for done in loads) - began_at,
        load_s=statistics.mean(done.time_s for done in loads),
    )
    tasks = simulated_tasks(run.plan, task_times(run))
    plan = plan_evaluation(tasks, setting)
    return run_plan([task.item for task in tasks], plan, setting).makespan_s


def simulate_per_task(setup: Setup, run: Run, ours: Run) -> float:
    """The makespan of a trial each, with our times of inference and scoring: `lm_eval` does not tell
    its own. What its processes took beside these is their start."""
    assert ours.plan is not None
    times = task_times(ours)
    work_s = {task: times.infer_s[task] + times.metric_s[task] for task in times.infer_s}
    start_s = statistics.mean(job.process_s - work_s[job.name] for job in run.jobs)
    tasks = simulated_tasks(ours.plan, times)
    return per_task(tasks, setting_of(setup, process_start_s=start_s)).makespan_s


def _of_kind(run: Run, kind: str) -> list[Done]:
    return [done for done in run.times if done.kind == kind]
