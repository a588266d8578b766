"""The benchmark's other two ways to run the same tasks: `lm_eval` once a task, and OpenCompass's partitions.

OpenCompass itself is not run: its partitioners say who answers what, and each of their tasks is a
process with our inference code, which reads and loads the model and answers its slices. When all have
ended, our scoring begins, once for all tasks. Making the plan is not counted.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from configs.files import write_text
from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, read_record, write_record
from configs.schema import EvaluateConfig
from tasks.evaluate.bench_evaluate_storage import Job, JobTimes, Storage, run_jobs, run_process
from tasks.evaluate.manifest import read_requests, requests_path
from tasks.evaluate.plan import EvaluationPlan, ShardPlan, TaskPlan, read_plan
from tasks.evaluate.simulation_policies import Partition
from tasks.evaluate.times import Done, read_times

_PARTITION = "tasks.evaluate.bench_evaluate_partition"

Scores = dict[tuple[str, str], float]
"""Task and metric -> value."""


@dataclass(frozen=True)
class Setup:
    """What all of them share."""

    model_dir: Path
    suite_dir: Path
    tasks: Sequence[str]
    work_dir: Path
    storage: Storage
    config: EvaluateConfig

    def environment(self, priors: str) -> dict[str, str]:
        """Of each process: offline, one thread, its own caches."""
        offline = dict.fromkeys(
            ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "PYTHONSAFEPATH"), "1"
        )
        threads = str(self.config.cpu_threads)
        return {
            **os.environ,
            **offline,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_DATASETS_CACHE": str(self.work_dir / "datasets_cache"),
            "OVERLAND_PRIORS": str(self.work_dir / priors),
        }


@dataclass(frozen=True)
class Run:
    """How one of them went."""

    makespan_s: float
    scores: Scores
    jobs: Sequence[JobTimes] = ()
    times: Sequence[Done] = ()
    plan: EvaluationPlan | None = None
    partition: Partition = field(default_factory=list)
    scoring_cpu_s: float = 0.0


def run_ours(setup: Setup, storage_mib_per_s: float) -> Run:
    """`overland evaluate`, which knows the times that were measured before."""
    evaluation = EvaluationDir(setup.work_dir / "ours", step=0)
    config = setup.config
    argv = [
        *(sys.executable, "-m", "flows.cli", "evaluate", str(setup.model_dir), "--json"),
        *("--tasks", ",".join(setup.tasks), "--task-dir", str(setup.suite_dir)),
        *("--out", str(evaluation.path), "--dtype", str(config.dtype), "--gpus", "none"),
        *("--workers", str(config.workers), "--threads", str(config.cpu_threads)),
        *("--scorers", str(config.scorers), "--stage-mib-per-s", str(storage_mib_per_s)),
    ]
    log, environment = setup.work_dir / "ours.log", setup.environment("priors.db")
    began_at, begun = time.time(), time.monotonic()
    run_process(Job("overland evaluate", argv, log, environment, setup.work_dir))
    makespan_s = time.monotonic() - begun
    times, plan = read_times(evaluation), read_plan(evaluation)
    job = JobTimes("ours", began_at, began_at, time.time())
    return Run(makespan_s, scores_of(evaluation), [job], times, plan)


def run_per_task(setup: Setup, order: Sequence[str]) -> Run:
    """The `lm_eval` command once a task, one for each worker at a time."""
    out = setup.work_dir / "per_task"
    out.mkdir()
    arguments = [
        *("--model", "hf", "--device", "cpu", "--batch_size", "1", "--confirm_run_unsafe_code"),
        *("--model_args", f"pretrained={setup.model_dir},dtype={setup.config.dtype}"),
        *("--include_path", str(setup.suite_dir)),
    ]
    jobs = [
        Job(
            name=task,
            argv=[
                *(sys.executable, "-m", "lm_eval", "run", *arguments),
                *("--tasks", task, "--output_path", str(out / f"{task}.json")),
            ],
            log=out / f"{task}.log",
            environment=setup.environment("unused.db"),
            folder=setup.suite_dir,  # where relative data files are
        )
        for task in order
    ]
    begun = time.monotonic()
    times = run_jobs(jobs, setup.storage, setup.config.workers)
    makespan_s = time.monotonic() - begun
    scores: Scores = {}
    for path in sorted(out.glob("*.json")):
        for task, metrics in json.loads(path.read_text())["results"].items():
            for key, value in metrics.items():
                metric, comma, _ = key.partition(",")
                if comma and not metric.endswith("_stderr"):
                    scores[task, key] = value
    return Run(makespan_s, scores, times)


def run_partition(
    setup: Setup,
    name: str,
    plan: EvaluationPlan,
    partition: Partition,
    metric_s: Mapping[str, float],
) -> Run:
    """OpenCompass's inference tasks, and scoring after the last of them: longest `metric_s` first."""
    evaluation = _folder(setup, name)
    sliced = _sliced(evaluation, plan, partition, metric_s)
    write_record(evaluation.plan_path, sliced)
    environment = setup.environment("priors.db")
    jobs = [
        Job(
            name=worker,
            argv=[
                *(sys.executable, "-m", _PARTITION),
                *(str(evaluation.path), worker),
            ],
            log=evaluation.path / f"{worker}.log",
            environment=environment,
            folder=setup.work_dir,
        )
        for worker in _names(partition)
    ]
    scoring = Job(
        name="scoring",
        argv=[sys.executable, "-m", "tasks.evaluate.score", str(evaluation.path)],
        log=evaluation.path / "score.log",
        environment=environment,
        folder=setup.work_dir,
    )
    begun = time.monotonic()
    times = run_jobs(jobs, setup.storage, setup.config.workers)
    cpu_before_s = children_cpu_s()
    run_process(scoring)
    makespan_s = time.monotonic() - begun
    return Run(
        makespan_s,
        scores_of(evaluation),
        times,
        read_times(evaluation),
        sliced,
        partition,
        children_cpu_s() - cpu_before_s,
    )


def make_bench_plan(setup: Setup) -> EvaluationPlan:
    """All requests, enumerated; its shards are replaced by each partition's slices."""
    evaluation = _folder(setup, "plan")
    argv = [sys.executable, "-m", _PARTITION, str(evaluation.path)]
    log, environment = setup.work_dir / "plan.log", setup.environment("unused.db")
    run_process(Job("planning", argv, log, environment, setup.work_dir))
    return read_plan(evaluation)


def scores_of(evaluation: EvaluationDir) -> Scores:
    """What our scoring has found."""
    found = read_record(evaluation.scores_path, EvaluationScores)
    assert found is not None, evaluation.scores_path
    return {(row.task, row.metric): row.value for row in found.scores}


def _folder(setup: Setup, name: str) -> EvaluationDir:
    evaluation = EvaluationDir(setup.work_dir / name, step=0)
    if (planned := setup.work_dir / "plan").is_dir():
        for part in ("tasks_dir", "requests_dir", "documents_dir"):
            target: Path = getattr(evaluation, part)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(planned / target.name)
    evaluation.path.mkdir(exist_ok=True)
    evaluation.model_dir.symlink_to(setup.model_dir)
    write_text(evaluation.config_path, setup.config.model_dump_json())
    return evaluation


def _sliced(
    evaluation: EvaluationDir,
    plan: EvaluationPlan,
    partition: Partition,
    metric_s: Mapping[str, float],
) -> EvaluationPlan:
    """The plan with the partition's slices for shards; a task's slices are handed out in its order."""
    ends = [_document_ends(evaluation, task) for task in plan.tasks]
    given = [0] * len(plan.tasks)
    shards: list[list[ShardPlan]] = [[] for _ in plan.tasks]
    for worker, slices in zip(_names(partition), partition, strict=True):
        for at, documents in slices:
            stop = given[at] + documents
            rows = (ends[at][given[at]], ends[at][stop])
            shards[at].append(_shard(plan.tasks[at], rows, worker))
            given[at] = stop
    tasks = [
        task.model_copy(update={"shards": own, "metric_s": metric_s.get(task.task, 0.0)})
        for task, own in zip(plan.tasks, shards, strict=True)
    ]
    order = [shard.name for task in tasks for shard in task.shards]
    return plan.model_copy(update={"tasks": tasks, "order": order})


def _names(partition: Partition) -> list[str]:
    return [f"partition{number:03d}" for number in range(len(partition))]


Place = tuple[int, int]
"""A row's position, and the byte where it begins."""


def _document_ends(evaluation: EvaluationDir, task: TaskPlan) -> list[Place]:
    """Where the first document begins, and where each of them ends. Tasks have one request type each."""
    path = requests_path(evaluation, task.file)
    rows = read_requests(path)
    lengths = [len(line) for line in path.read_bytes().splitlines(keepends=True)]
    places = list(enumerate(itertools.accumulate(lengths, initial=0)))
    return [places[0], *_changes([row.document for row in rows], places), places[-1]]


def _changes(documents: Sequence[int], places: Sequence[Place]) -> Iterator[Place]:
    for position in range(1, len(documents)):
        if documents[position] != documents[position - 1]:
            yield places[position]


def _shard(task: TaskPlan, rows: tuple[Place, Place], worker: str) -> ShardPlan:
    (start, start_bytes), (stop, stop_bytes) = rows
    return ShardPlan(
        name=f"{task.file}.{start:06d}-{stop:06d}",
        request_type=task.shards[0].request_type,
        start=start,
        stop=stop,
        start_bytes=start_bytes,
        stop_bytes=stop_bytes,
        responses=stop - start,
        worker=worker,
    )


def children_cpu_s() -> float:
    """Of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
