"""One of OpenCompass's inference tasks, with our inference code: loads the model, answers its slices.

    python -m tasks.evaluate.bench_evaluate_partition EVALUATION_DIR         makes the plan
    python -m tasks.evaluate.bench_evaluate_partition EVALUATION_DIR NAME

Its slices are the shards of the plan that name it as their worker.
"""

from __future__ import annotations

import sys
from pathlib import Path

from configs.rundir import EvaluationDir
from tasks.evaluate.backends import import_backend
from tasks.evaluate.plan import config_of, read_plan
from tasks.evaluate.worker import answer_shard, load_and_record


def answer_partition(evaluation: EvaluationDir, name: str) -> None:
    """Answer all slices of the partition; what took how long goes to `times/NAME.jsonl`."""
    plan = read_plan(evaluation)
    import_backend(plan.answering.backend, evaluation.model_dir)
    model, _ = load_and_record(evaluation, evaluation.model_dir, plan, worker=name)
    for task, shard in plan.shards():
        if shard.worker == name:
            answer_shard(evaluation, model, task, shard, worker=name)


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
