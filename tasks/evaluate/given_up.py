"""Shards that the model cannot answer: tried by two processes, then given up, with their task's scores.

`responses/SHARD.tried` says what ended the first try, `responses/SHARD.failed` what ended the last one; a
shard with such a file is done, as one with responses is. A task that lacks responses has no scores, and
neither has its group; all others have theirs. The next command tries what was given up once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from configs.files import write_text
from configs.rundir import EvaluationDir
from tasks.evaluate.plan import EvaluationPlan, ShardPlan, TaskPlan
from tasks.evaluate.responses import failure_path, shard_path

EXIT_BEGIN_AGAIN = 3
"""Of a worker that could not answer a shard: a new process is to go on."""


class ShardError(Exception):
    """The model's backend has raised on a shard: another process may fare better."""


def note_failure(
    evaluation: EvaluationDir, plan: EvaluationPlan, task: TaskPlan, shard: ShardPlan, said: str
) -> bool:
    """Note a try that failed; whether the shard is given up, and with it what is left of its target."""
    tried = _tried_path(evaluation, shard)
    if not tried.is_file():
        write_text(tried, said + "\n")
        return False
    give_up(evaluation, plan, task, said)
    return True


def give_up(evaluation: EvaluationDir, plan: EvaluationPlan, task: TaskPlan, said: str) -> None:
    """Leave what is not answered of the task's target, for good reason."""
    sentence = f"evaluation task {task.task!r} cannot be answered: {said}"
    for shard in plan.shards_of(task.target):
        if not shard_path(evaluation, shard.name).is_file():
            write_text(failure_path(evaluation, shard.name), sentence + "\n")


def why_given_up(evaluation: EvaluationDir, shards: Iterable[ShardPlan]) -> str | None:
    """What was said of the first shard among these that was given up and has no responses."""
    for shard in shards:
        path = failure_path(evaluation, shard.name)
        if path.is_file() and not shard_path(evaluation, shard.name).is_file():
            return path.read_text().strip()
    return None


def try_again(evaluation: EvaluationDir) -> None:
    """Forget what was tried: its cause may have been mended."""
    for pattern in ("*.tried", "*.failed"):
        for path in evaluation.responses_dir.glob(pattern):
            path.unlink(missing_ok=True)


def _tried_path(evaluation: EvaluationDir, shard: ShardPlan) -> Path:
    return failure_path(evaluation, shard.name).with_suffix(".tried")
