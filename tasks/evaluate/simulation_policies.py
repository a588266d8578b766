"""How others would run the same tasks: one trial a task, and OpenCompass's two partitioners.

The partitioners follow OpenCompass 0.5 (`opencompass/partitioners/size.py`, `num_worker.py`). Where a
policy leaves a choice, all of a few are tried and the best is taken, which is kinder than its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from configs.evaluation_simulation import EvaluationSetting, PolicyResult
from tasks.evaluate.schedule_metrics import run_metrics
from tasks.evaluate.simulation_trials import Trial, run_trials
from tasks.evaluate.simulation_workload import SimulatedTask

Slice = tuple[int, int]
"""Position of a task, and how many of its requests."""
Partition = list[list[Slice]]
"""The slices of each trial."""

DEFAULT_TASK_SIZE = 40_000
_TASK_SIZES = tuple(int(DEFAULT_TASK_SIZE * 2.0**power) for power in range(-8, 48))
_SIZES_TRIED = 15
_MIN_TASK_SIZE = 16
_WORKERS_A_GPU = (1, 2, 3)
_MOST_TRIALS = 50_000
"""More slices than this are not tried: no tool would be used like that."""


def per_task(tasks: Sequence[SimulatedTask], setting: EvaluationSetting) -> PolicyResult:
    """`lm_eval` once for each task: a trial keeps its GPU until its metric is done."""
    orders = {
        "in the tasks' order": list(tasks),
        "longest first": sorted(tasks, key=lambda task: -task.item.infer_s - task.item.metric_s),
    }
    results = []
    for name, order in orders.items():
        trials = [
            Trial(task.item.infer_s + setting.shard_overhead_s, task.item.metric_s)
            for task in order
        ]
        run = run_trials(trials, setting)
        results.append(
            PolicyResult(
                makespan_s=run.end_s,
                infer_end_s=run.infer_end_s,
                loads=len(trials),
                gpu_busy_share=_busy(tasks, setting, run.end_s),
                choice=name,
            )
        )
    return _best(results)


def opencompass_size(
    tasks: Sequence[SimulatedTask], setting: EvaluationSetting
) -> tuple[PolicyResult, PolicyResult | None]:
    """SizePartitioner: the best over max_task_size and strategy, and its defaults where it can run."""
    partitions = size_partitions(tasks)
    results = {
        choice: infer_then_eval(tasks, setting, partition, choice)
        for choice, partition in partitions.items()
    }
    return _best(list(results.values())), results.get(_size_choice(DEFAULT_TASK_SIZE, merge=True))


def size_partitions(tasks: Sequence[SimulatedTask]) -> dict[str, Partition]:
    """SizePartitioner's partitions, by the choice that gives each."""
    sizes = [size for size in _TASK_SIZES if _can_split(tasks, size)][:_SIZES_TRIED]
    return {
        _size_choice(size, merge=merge): size_partition(tasks, size, merge=merge)
        for size in sizes
        for merge in (True, False)
    }


def _size_choice(size: int, *, merge: bool) -> str:
    return f"max_task_size={size}, strategy={'heuristic' if merge else 'split'}"


def _can_split(tasks: Sequence[SimulatedTask], size: int) -> bool:
    """Whether the tool would not refuse, and does not make more slices than are of use."""
    costs = [task.cost_factor * task.item.requests for task in tasks]
    return all(size >= task.cost_factor for task in tasks) and (
        sum(max(cost / size, 1) for cost in costs) <= max(_MOST_TRIALS, 2 * len(tasks))
    )


def opencompass_num_worker(
    tasks: Sequence[SimulatedTask], setting: EvaluationSetting
) -> tuple[PolicyResult, PolicyResult]:
    """NumWorkerPartitioner: the best over num_worker and strategy, and one worker a GPU."""
    results = [
        infer_then_eval(tasks, setting, partition, choice)
        for choice, partition in num_worker_partitions(tasks, setting.gpus).items()
    ]
    return _best(results), results[0]


def num_worker_partitions(tasks: Sequence[SimulatedTask], gpus: int) -> dict[str, Partition]:
    """NumWorkerPartitioner's partitions, by the choice that gives each; one worker a GPU first."""
    return {
        f"num_worker={factor * gpus}, strategy={'heuristic' if merge else 'split'}": (
            num_worker_partition(tasks, factor * gpus, merge=merge)
        )
        for factor in _WORKERS_A_GPU
        for merge in (True, False)
        if (factor == 1 and merge) or factor * gpus * len(tasks) <= _MOST_TRIALS
    }


def size_partition(tasks: Sequence[SimulatedTask], max_size: int, *, merge: bool) -> Partition:
    """Split what is larger than `max_size`, evenly; pack the rest, by size, until the next is too much."""
    chunks: list[tuple[int, Slice]] = []
    sizes = [task.cost_factor * task.item.requests for task in tasks]
    for at in sorted(range(len(tasks)), key=lambda at: -sizes[at]):
        requests = tasks[at].item.requests
        if sizes[at] <= max_size:
            chunks.append((sizes[at], (at, requests)))
            continue
        step = max_size // tasks[at].cost_factor
        step = math.ceil(requests / math.ceil(requests / step))
        chunks += [(max_size, (at, count)) for count in _steps(requests, step)]
    if not merge:
        return [[chunk] for _, chunk in chunks]
    chunks.sort(key=lambda chunk: -chunk[0])
    trials: list[list[Slice]] = []
    size, current = 0, list[Slice]()
    for number, (chunk_size, chunk) in enumerate(chunks):
        size += chunk_size
        current.append(chunk)
        if number + 1 == len(chunks) or size + chunks[number + 1][0] > max_size:
            trials.append(current)
            size, current = 0, []
    return trials


def num_worker_partition(tasks: Sequence[SimulatedTask], workers: int, *, merge: bool) -> Partition:
    """Split each task into as many slices as workers, and deal them out."""
    chunks: list[Slice] = []
    for at, task in enumerate(tasks):
        requests = task.item.requests
        if workers <= 1 or requests <= _MIN_TASK_SIZE:
            chunks.append((at, requests))
            continue
        step = max(math.ceil(requests / workers), _MIN_TASK_SIZE)
        chunks += [(at, count) for count in _steps(requests, step)]
    if not merge:
        return [[chunk] for chunk in chunks]
    buckets: list[list[Slice]] = [[] for _ in range(workers)]
    for number, chunk in enumerate(chunks):
        buckets[number % workers].append(chunk)
    return [bucket for bucket in buckets if bucket]


def _steps(requests: int, step: int) -> Iterator[int]:
    for start in range(0, requests, step):
        yield min(step, requests - start)


def infer_then_eval(
    tasks: Sequence[SimulatedTask],
    setting: EvaluationSetting,
    partition: Partition,
    choice: str,
) -> PolicyResult:
    """Each trial loads the model once for its slices; when all have ended, all metrics run on CPU cores."""
    items = [task.item for task in tasks]
    trials = [
        Trial(sum(n * items[at].request_s + setting.shard_overhead_s for at, n in slices))
        for slices in partition
    ]
    run = run_trials(trials, setting)
    scoring_s = run.end_s + setting.scorer_start_s
    metrics = run_metrics(items, [scoring_s] * len(items), [0.0] * setting.cpu_cores)
    return PolicyResult(
        makespan_s=max([run.end_s, *(metric.end_s for metric in metrics)]),
        infer_end_s=run.end_s,
        loads=len(trials),
        gpu_busy_share=_busy(tasks, setting, run.end_s),
        choice=choice,
    )


def _busy(tasks: Sequence[SimulatedTask], setting: EvaluationSetting, end_s: float) -> float:
    work_s = sum(task.item.infer_s for task in tasks)
    return work_s / (setting.gpus * end_s) if end_s else 0.0


def _best(results: Sequence[PolicyResult]) -> PolicyResult:
    return min(results, key=lambda result: result.makespan_s)
