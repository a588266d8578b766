"""Flow: committed checkpoints -> scores, one by one or as training commits them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.errors import InputError
from configs.evaluation_due import is_due
from configs.rundir import RunDir
from configs.schema import RunConfig
from flows.cancellation import end_evaluations
from flows.locks import is_training
from flows.session import config_of, open_run, tracked
from tasks.evaluate.task import EvaluationCancelled, evaluate_checkpoint
from tasks.train.task import remove_unneeded_checkpoints

LOOK_INTERVAL_S = 1.0


@flow(name="evaluate", flow_run_name="{run_dir.name}-evaluate", on_cancellation=[end_evaluations])
def evaluate(run_dir: Path, steps: list[int] | None = None) -> dict[int, bool]:
    """Score the checkpoints of `steps`, or those committed ones that are due and have no scores yet.

    Returns step -> whether it has scores.
    """
    config = config_of(run_dir)
    with open_run(config, "evaluate") as run:
        committed = [checkpoint.step for checkpoint in run.committed_checkpoints()]
        missing = sorted(set(steps or []) - set(committed))
        if missing:
            raise InputError(
                f"{run.path} has no committed checkpoint of step {missing[0]}: it has {committed}"
            )
        wanted = steps or due_steps(config, run, training_over=not is_training(run))
        with tracked(run, config):
            scored = {step: evaluate_checkpoint(config, step) is not None for step in wanted}
        remove_unneeded_checkpoints(config)
        return scored


@dataclass
class Following:
    """How the pipeline tells its evaluations about the training beside them."""

    training_over: threading.Event = field(default_factory=threading.Event)
    """No further checkpoint will come: evaluate what is there, then end."""
    stop: threading.Event = field(default_factory=threading.Event)
    """End now; the evaluation that runs is cancelled."""


@task(name="evaluate-as-committed", cache_policy=NO_CACHE)
def evaluate_as_committed(config: RunConfig, following: Following) -> None:
    """Score each checkpoint soon after its commit, oldest first, until training is over."""
    run = RunDir(config.resolved_run_dir())
    tried: set[tuple[int, str | None]] = set()  # a step may be saved again, as another checkpoint
    while not following.stop.is_set():
        over = following.training_over.is_set()
        steps = due_steps(config, run, training_over=over)
        due = [(step, run.checkpoint(step).identity()) for step in steps]
        untried = [checkpoint for checkpoint in due if checkpoint not in tried]
        if untried:
            step, _ = untried[0]
            tried.add(untried[0])
            try:
                evaluate_checkpoint(config, step, following.stop)
            except EvaluationCancelled:
                get_run_logger().warning("evaluation of step %d was cancelled", step)
            remove_unneeded_checkpoints(config)
        elif over:
            return
        else:
            following.training_over.wait(LOOK_INTERVAL_S)


def due_steps(config: RunConfig, run: RunDir, *, training_over: bool) -> list[int]:
    """Committed checkpoints that should have scores and have none: every Nth, and the last one."""
    steps = [checkpoint.step for checkpoint in run.committed_checkpoints()]
    wanted = [step for step in steps if is_due(config, step)]
    if steps and training_over:
        wanted.append(steps[-1])
    return [step for step in sorted(set(wanted)) if run.evaluation(step).scores() is None]
