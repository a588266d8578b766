"""One of OpenCompass's inference tasks, with our inference code: loads the model, answers its slices.

    python -m tasks.evaluate.bench_evaluate_partition EVALUATION_DIR         makes the plan
    python -m tasks.evaluate.bench_evaluate_partition EVALUATION_DIR NAME

Its slices are the shards of the plan that name it as their worker.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from configs.rundir import EvaluationDir
from tasks.evaluate.backends import ask, import_backend, load_model
from tasks.evaluate.manifest import read_requests, requests_path
from tasks.evaluate.plan import config_of, read_plan
from tasks.evaluate.responses import shard_path, write_shard
from tasks.evaluate.times import Done, record


def answer_partition(evaluation: EvaluationDir, name: str) -> None:
    """Answer all slices of the partition; what took how long goes to `times/NAME.jsonl`."""
    plan = read_plan(evaluation)
    import_backend(plan.answering.backend, evaluation.model_dir)
    started_at = time.time()
    model = load_model(evaluation.model_dir, plan.answering)
    loaded = Done(
        kind="load", name="model", worker=name, started_at=started_at, ended_at=time.time()
    )
    record(evaluation, loaded)
    for task, shard in plan.shards():
        if shard.worker != name:
            continue
        started_at = time.time()
        rows = read_requests(
            requests_path(evaluation, task.file), shard.start_bytes, shard.stop_bytes
        )
        responses = ask(model, [row.as_instance(task.task) for row in rows])
        write_shard(shard_path(evaluation, shard.name), responses)
        done = Done(
            kind="shard",
            name=shard.name,
            worker=name,
            started_at=started_at,
            ended_at=time.time(),
            requests=len(rows),
        )
        record(evaluation, done)


def _plan(evaluation: EvaluationDir) -> None:
    from tasks.evaluate.planning import make_plan  # what only answers pays nothing for it

    make_plan(config_of(evaluation), evaluation, evaluation.path)


if __name__ == "__main__":
    _directory, *_name = sys.argv[1:]
    _evaluation = EvaluationDir(Path(_directory), step=0)
    if _name:
        answer_partition(_evaluation, *_name)
    else:
        _plan(_evaluation)
