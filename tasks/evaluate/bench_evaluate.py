"""One evaluation by us, by `lm_eval` once a task, and by OpenCompass's partitioners: real runs, one after another.

All read the model from storage of the same bandwidth, use the same number of workers, and answer the
same tasks (see bench_evaluate_suite.py). OpenCompass's partition by workers runs first; the times
that it measures are known to all others: to our planner, to the order of the `lm_eval` commands (longest
first), and to the choice of OpenCompass's `max_task_size` (the best one, by simulation).

The speed of a machine that is shared drifts by more than what is compared: repeated, all figures are
medians of the rounds.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    TaskTimes,
    least,
    lower_bound_s,
    partition_setting,
    simulate_ours,
    simulate_partition,
    simulate_per_task,
    simulated_tasks,
    task_times,
    typical,
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
    repeats: int = 1,
    simulate: bool = False,
) -> dict[str, Any]:
    """Measure all of them with the model in this folder, `repeats` times one after another; `scale`
    gives tasks more or fewer documents.

    Returns ours_s, per_task_s, opencompass_size_s, opencompass_num_worker_s (from the command's start
    to the last score) and lower_bound_s (docs/evaluation-planning.md; of the median times that were
    measured of each task; lower_bound_least_s: of the least, lower_bound_own_times_s: of our runs'),
    over_bound, speedup, same_scores, choices, tasks, and what the machine was like. `simulate` adds
    simulated_s and simulation_error of each. Each round's makespans are in rounds_s.
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
        load_average = os.getloadavg()[0]
        rounds: list[Round] = []
        for number in range(1, repeats + 1):
            (round_dir := work_dir / f"round{number}").mkdir()
            rounds.append(_measure(replace(setup, work_dir=round_dir), storage_mib_per_s, scale))
            first = rounds[0].runs["ours"]
            _compare(first, rounds[-1].runs["ours"], f"ours in round {number}")
        figures = _figures(rounds) | {
            "repeats": repeats,
            "workers": WORKERS,
            "scorers": SCORERS,
            "storage_mib_per_s": storage_mib_per_s,
            "model_bytes": setup.storage.size_bytes,
            "load_average_before": load_average,
        }
        return figures | (_simulated(rounds) if simulate else {})


@dataclass(frozen=True)
class Round:
    """All of them, once."""

    setup: Setup
    plan: EvaluationPlan
    runs: dict[str, Run] = field(default_factory=dict)
    others_busy_cores: dict[str, float] = field(default_factory=dict)
    """What other programs kept busy meanwhile."""
    choices: dict[str, str] = field(default_factory=dict)

    def measure(self, name: str, measure: Callable[[], Run]) -> Run:
        """Keep what `measure` finds; EvaluationError when its scores are not those of the first run."""
        begun, busy_s = time.monotonic(), _others_cpu_s()
        run = self.runs[name] = measure()
        self.others_busy_cores[name] = (_others_cpu_s() - busy_s) / (time.monotonic() - begun)
        print(f"{name}: {run.makespan_s:.1f} s", file=sys.stderr, flush=True)
        _compare(next(iter(self.runs.values())), run, name)
        return run

    @property
    def partitioned(self) -> list[Run]:
        """The runs in which nobody plans or scores beside inference."""
        return [self.runs["opencompass_num_worker"], self.runs["opencompass_size"]]


def _measure(setup: Setup, storage_mib_per_s: float, scale: float) -> Round:
    plan = make_bench_plan(setup)
    done = Round(setup, plan)
    num_worker_choice, by_worker = next(
        iter(num_worker_partitions(simulated_tasks(plan), WORKERS).items())
    )
    known_s = known_metric_s(scale)
    probe = done.measure(
        "opencompass_num_worker",
        lambda: run_partition(setup, "num_worker", plan, by_worker, known_s),
    )
    known = task_times(probe)
    done.measure("ours", lambda: run_ours(setup, storage_mib_per_s))
    size_choice, by_size = _best_size(setup, plan, probe)
    done.measure(
        "opencompass_size",
        lambda: run_partition(setup, "size", plan, by_size, known.metric_s),
    )
    order = sorted(setup.tasks, key=lambda task: -known.infer_s[task] - known.metric_s[task])
    done.measure("per_task", lambda: run_per_task(setup, order))
    done.choices.update(
        per_task="longest first",
        opencompass_size=size_choice,
        opencompass_num_worker=num_worker_choice,
    )
    return done


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


def _figures(rounds: Sequence[Round]) -> dict[str, Any]:
    setup, plan = rounds[0].setup, rounds[0].plan
    makespan_s = {
        name: statistics.median(done.runs[name].makespan_s for done in rounds)
        for name in ("ours", *OTHERS)
    }
    partitioned = [run for done in rounds for run in done.partitioned]
    own = [task_times(done.runs["ours"]) for done in rounds]
    measured = [*own, *map(task_times, partitioned)]
    times = typical(measured)

    def bound_s(of_tasks: TaskTimes) -> float:
        return lower_bound_s(setup, plan, of_tasks, partitioned)

    lowest_s = bound_s(times)
    best_opencompass_s = min(makespan_s[name] for name in OTHERS[1:])
    return {
        **{f"{name}_s": seconds for name, seconds in makespan_s.items()},
        "lower_bound_s": lowest_s,
        "over_bound": makespan_s["ours"] / lowest_s - 1,
        "lower_bound_least_s": bound_s(least(measured)),
        "lower_bound_own_times_s": bound_s(typical(own)),
        "speedup": {name: makespan_s[name] / makespan_s["ours"] for name in OTHERS},
        "speedup_best_opencompass": best_opencompass_s / makespan_s["ours"],
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
        "infer_s": _total(rounds, lambda measured: measured.infer_s),
        "metric_s": _total(rounds, lambda measured: measured.metric_s),
        "choices": rounds[0].choices,
        "rounds_s": [{name: run.makespan_s for name, run in r.runs.items()} for r in rounds],
        "others_busy_cores": {
            name: max(done.others_busy_cores[name] for done in rounds) for name in makespan_s
        },
    }


def _total(
    rounds: Sequence[Round], part: Callable[[TaskTimes], Mapping[str, float]]
) -> dict[str, float]:
    """Of all tasks together, in each run with our code."""
    return {
        name: statistics.median(sum(part(task_times(r.runs[name])).values()) for r in rounds)
        for name in _TIMED
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


def _simulated(rounds: Sequence[Round]) -> dict[str, Any]:
    """Each run simulated with what it measured, and how far the simulation is off."""
    found_s = [_simulate(done) for done in rounds]
    errors = [
        {name: found[name] / done.runs[name].makespan_s - 1 for name in found}
        for found, done in zip(found_s, rounds, strict=True)
    ]
    return {
        "simulated_s": {n: statistics.median(found[n] for found in found_s) for n in found_s[0]},
        "simulation_error": {n: statistics.median(e[n] for e in errors) for n in errors[0]},
    }


def _simulate(done: Round) -> dict[str, float]:
    setup, runs = done.setup, done.runs
    found_s = {
        "ours": simulate_ours(setup, runs["ours"]),
        "per_task": simulate_per_task(setup, runs["per_task"], runs["ours"]),
    }
    for name in OTHERS[1:]:
        run = runs[name]
        assert run.plan is not None
        tasks = simulated_tasks(run.plan, task_times(run))
        found_s[name] = simulate_partition(tasks, partition_setting(setup, run), run.partition)
    return found_s
