"""One evaluation by us, by `lm_eval` once a task, and by OpenCompass's partitioners: real runs, one after another.

All read the model from storage of the same bandwidth, use the same number of workers, and answer the
same tasks (see bench_evaluate_suite.py). OpenCompass's partition by workers runs first; the times
that it measures are known to all others: to our planner, to the order of the `lm_eval` commands (longest
first), and to the choice of OpenCompass's `max_task_size` (the best one, by simulation).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from configs.errors import EvaluationError
from configs.schema import EvaluateConfig
from tasks.evaluate.bench_evaluate_peers import (
    Run,
    Setup,
    children_cpu_s,
    make_bench_plan,
    run_ours,
    run_partition,
    run_per_task,
)
from tasks.evaluate.bench_evaluate_storage import Storage
from tasks.evaluate.bench_evaluate_suite import known_metric_s, write_suite
from tasks.evaluate.bench_evaluate_times import (
    least,
    lower_bound_s,
    partition_setting,
    simulate_ours,
    simulate_partition,
    simulate_per_task,
    simulated_tasks,
    task_times,
)
from tasks.evaluate.model_folder import check_model
from tasks.evaluate.plan import EvaluationPlan
from tasks.evaluate.simulation_policies import (
    Partition,
    num_worker_partitions,
    size_partitions,
)

WORKERS = 2
SCORERS = 2
STORAGE_MIB_PER_S = 20.0
_MIB = 1 << 20
OTHERS = ("per_task", "opencompass_size", "opencompass_num_worker")


def bench_evaluate(
    model: Path,
    *,
    storage_mib_per_s: float = STORAGE_MIB_PER_S,
    scale: float = 1.0,
    simulate: bool = False,
) -> dict[str, Any]:
    """Measure all of them with the model in this folder; `scale` gives tasks more or fewer documents.

    Returns ours_s, per_task_s, opencompass_size_s, opencompass_num_worker_s (from the command's start
    to the last score) and lower_bound_s (docs/evaluation-planning.md; of the least times that were
    measured of each task), over_bound, speedup, same_scores, choices, tasks, and what the machine was
    like. `simulate` adds simulated_s and simulation_error of each.
    """
    model = model.absolute()
    check_model(model)
    with tempfile.TemporaryDirectory(prefix="overland-bench-") as folder:
        work_dir = Path(folder)
        tasks = write_suite(work_dir / "suite", scale)
        setup = Setup(
            model_dir=model,
            suite_dir=work_dir / "suite",
            tasks=tasks,
            work_dir=work_dir,
            storage=Storage(model, storage_mib_per_s * _MIB),
            config=EvaluateConfig(
                tasks=tasks,
                task_dirs=[work_dir / "suite"],
                dtype="float32",
                workers=WORKERS,
                scorers=SCORERS,
            ),
        )
        return _measure(setup, storage_mib_per_s, scale, simulate=simulate)


def _measure(
    setup: Setup, storage_mib_per_s: float, scale: float, *, simulate: bool
) -> dict[str, Any]:
    load_average = os.getloadavg()[0]
    plan = make_bench_plan(setup)
    num_worker_choice, by_worker = next(
        iter(num_worker_partitions(simulated_tasks(plan), WORKERS).items())
    )
    runs: dict[str, Run] = {}
    others_busy_cores: dict[str, float] = {}

    def run(name: str, measure: Callable[[], Run]) -> None:
        begun, busy_s = time.monotonic(), _others_cpu_s()
        runs[name] = measure()
        others_busy_cores[name] = (_others_cpu_s() - busy_s) / (time.monotonic() - begun)
        print(f"{name}: {runs[name].makespan_s:.1f} s", file=sys.stderr, flush=True)
        _compare(runs["opencompass_num_worker"], runs[name], name)

    known_s = known_metric_s(scale)
    run(
        "opencompass_num_worker",
        lambda: run_partition(setup, "num_worker", plan, by_worker, known_s),
    )
    probe = runs["opencompass_num_worker"]
    known = task_times(probe)
    run("ours", lambda: run_ours(setup, storage_mib_per_s))
    size_choice, by_size = _best_size(setup, plan, probe)
    run(
        "opencompass_size",
        lambda: run_partition(setup, "size", plan, by_size, known.metric_s),
    )
    order = sorted(setup.tasks, key=lambda task: -known.infer_s[task] - known.metric_s[task])
    run("per_task", lambda: run_per_task(setup, order))
    figures = _figures(setup, plan, runs)
    figures["choices"] = {
        "per_task": "longest first",
        "opencompass_size": size_choice,
        "opencompass_num_worker": num_worker_choice,
    }
    figures |= {
        "workers": WORKERS,
        "scorers": SCORERS,
        "storage_mib_per_s": storage_mib_per_s,
        "model_bytes": setup.storage.size_bytes,
        "load_average_before": load_average,
        "others_busy_cores": others_busy_cores,
    }
    return figures | (_simulated(setup, runs) if simulate else {})


def _others_cpu_s() -> float:
    """What the processors have done for others than the processes that were started and have ended."""
    total = psutil.cpu_times()
    return sum(total) - total.idle - getattr(total, "iowait", 0.0) - children_cpu_s()


def _best_size(setup: Setup, plan: EvaluationPlan, probe: Run) -> tuple[str, Partition]:
    """The partition by size that ends first, going by the times of another run."""
    tasks = simulated_tasks(plan, task_times(probe))
    setting = partition_setting(setup, probe)
    partitions = size_partitions(tasks)
    best = min(partitions, key=lambda c: simulate_partition(tasks, setting, partitions[c]))
    return best, partitions[best]


def _figures(setup: Setup, plan: EvaluationPlan, runs: dict[str, Run]) -> dict[str, Any]:
    ours = runs["ours"]
    partitioned = [runs["opencompass_num_worker"], runs["opencompass_size"]]
    own = task_times(ours)
    times = least([own, *map(task_times, partitioned)])
    bound_s = lower_bound_s(setup, plan, times, partitioned)
    best_opencompass_s = min(run.makespan_s for run in partitioned)
    return {
        **{f"{name}_s": runs[name].makespan_s for name in ("ours", *OTHERS)},
        "lower_bound_s": bound_s,
        "over_bound": ours.makespan_s / bound_s - 1,
        "lower_bound_own_times_s": lower_bound_s(setup, plan, own, partitioned),
        "speedup": {name: runs[name].makespan_s / ours.makespan_s for name in OTHERS},
        "speedup_best_opencompass": best_opencompass_s / ours.makespan_s,
        "same_scores": True,
        "tasks": {
            task.task: {
                "documents": task.documents,
                "requests": task.requests,
                "infer_s": times.infer_s[task.task],
                "metric_s": times.metric_s[task.task],
            }
            for task in plan.tasks
        },
        "infer_s": {name: sum(task_times(runs[name]).infer_s.values()) for name in _TIMED},
        "metric_s": {name: sum(task_times(runs[name]).metric_s.values()) for name in _TIMED},
    }


_TIMED = ("ours", "opencompass_size", "opencompass_num_worker")


def _compare(first: Run, other: Run, name: str) -> None:
    """EvaluationError when the two have not scored the same, to the last bit."""
    for key in sorted(first.scores.keys() | other.scores.keys()):
        found, wanted = other.scores.get(key), first.scores.get(key)
        if found != wanted:
            raise EvaluationError(
                f"{key[0]} {key[1]} is {found} by {name} and was {wanted} before: the benchmark has "
                "not compared the same work"
            )


def _simulated(setup: Setup, runs: dict[str, Run]) -> dict[str, Any]:
    """Each run simulated with what it measured, and how far the simulation is off."""
    found_s = {
        "ours": simulate_ours(setup, runs["ours"]),
        "per_task": simulate_per_task(setup, runs["per_task"], runs["ours"]),
    }
    for name in OTHERS[1:]:
        run = runs[name]
        assert run.plan is not None
        tasks = simulated_tasks(run.plan, task_times(run))
        found_s[name] = simulate_partition(tasks, partition_setting(setup, run), run.partition)
    errors = {name: found_s[name] / runs[name].makespan_s - 1 for name in found_s}
    return {"simulated_s": found_s, "simulation_error": errors}
