"""Asks the model: an exported checkpoint -> recorded responses, by this node's workers.

    python -m tasks.evaluate.infer RUN_DIR STEP
    python -m tasks.evaluate.infer EVALUATION_DIR

Reads, in `evaluations/step_N/`, `config.json`, `model/` and, when it is there and still fits them,
`plan.json`; else it makes the plan, while the workers start and the model is staged. Workers leave
`responses/SHARD.jsonl`, a shard at a time. Shards that are done are not run again. The same command on
further nodes helps with what is left, which is planned anew for all.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from configs.errors import EvaluationError
from configs.files import file_lock
from configs.rundir import EvaluationDir, read_record, write_record
from configs.schema import EvaluateConfig
from tasks.evaluate.command import run_command
from tasks.evaluate.crew import Crew
from tasks.evaluate.devices import check_backend
from tasks.evaluate.given_up import try_again, why_given_up
from tasks.evaluate.holding import at_work
from tasks.evaluate.model_folder import check_model
from tasks.evaluate.plan import EvaluationPlan, ShardPlan, config_of, current_plan
from tasks.evaluate.responses import Inferred, Pending


def infer(evaluation: EvaluationDir, heldout_dir: Path) -> None:
    """Run every shard of the evaluation that is not done yet."""
    if not (evaluation.model_dir / "config.json").is_file():
        raise EvaluationError(f"{evaluation.model_dir} is no exported model: export it first")
    config, started_at = config_of(evaluation), time.time()
    try_again(evaluation)
    plan = current_plan(config, evaluation)
    if plan is not None and not Pending(evaluation, _shards(plan)):
        _finish(evaluation, plan, started_at)
        return _say("all shards are done")
    check_model(evaluation.model_dir)
    check_backend(config.backend)
    with Crew(evaluation, config) as crew:
        plan = ensure_plan(config, evaluation, heldout_dir)
        pending = Pending(evaluation, _shards(plan))
        if pending:
            crew.go(plan)
            crew.attend(pending)
        else:
            _say("all shards are done")
    for leftover in evaluation.responses_dir.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)  # of a worker that was killed while it wrote
    _finish(evaluation, plan, started_at)


def is_inferred(evaluation: EvaluationDir) -> bool:
    """Whether all responses are there, none given up, that the evaluation's config asks for, of the model that is there."""
    known = read_record(evaluation.inferred_path, Inferred)
    if known is None or not evaluation.config_path.is_file():
        return False
    plan = current_plan(config_of(evaluation), evaluation)
    if plan is None or known.plan_sha256 != plan.sha256():
        return False
    shards = _shards(plan)
    return not Pending(evaluation, shards) and why_given_up(evaluation, shards) is None


def ensure_plan(
    config: EvaluateConfig, evaluation: EvaluationDir, heldout_dir: Path, *, here: bool = True
) -> EvaluationPlan:
    """The plan that is there if it fits, else a new one; of several processes, one makes it."""
    with file_lock(evaluation.path / "plan.lock"):
        if (plan := current_plan(config, evaluation)) is not None:
            return plan
        # lm-eval takes a second to import, in which the model is already on its way.
        from tasks.evaluate.planning import make_plan

        return make_plan(config, evaluation, heldout_dir, here=here)


def _shards(plan: EvaluationPlan) -> list[ShardPlan]:
    return [shard for _, shard in plan.shards()]


def _finish(evaluation: EvaluationDir, plan: EvaluationPlan, started_at: float) -> None:
    """Say that all responses are there."""
    known = read_record(evaluation.inferred_path, Inferred)
    if known is None or known.plan_sha256 != plan.sha256():
        inferred = Inferred(plan_sha256=plan.sha256(), started_at=started_at, ended_at=time.time())
        write_record(evaluation.inferred_path, inferred)


def _say(text: str) -> None:
    print(text, flush=True)


def _main(evaluation: EvaluationDir, heldout_dir: Path) -> None:
    with at_work(evaluation):
        infer(evaluation, heldout_dir)


if __name__ == "__main__":
    sys.exit(run_command("tasks.evaluate.infer", _main))
