"""Flow: committed checkpoints -> scores, one by one or as training commits them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.errors import InputError
from configs.evaluation_due import is_due, take_turns
from configs.rundir import EvaluationDir, RunDir
from configs.schema import RunConfig
from flows.cancellation import end_evaluations
from flows.locks import first_in_line, is_training
from flows.session import config_of, is_from_server, open_run, tracked
from flows.show.progress import say
from infra.interrupt import held_off
from tasks.evaluate.task import (
    Ahead,
    EvaluationCancelled,
    evaluate_checkpoint,
    leave_out,
    watch_scores,
)
from tasks.train.task import remove_unneeded_checkpoints

LOOK_INTERVAL_S = 1.0
Tried = tuple[int, str | None]
"""A step and which checkpoint of it: the step may be saved again."""


@flow(name="evaluate", flow_run_name="{run_dir.name}-evaluate", on_cancellation=[end_evaluations])
def evaluate(run_dir: Path, steps: list[int] | None = None) -> dict[int, bool]:
    """Score the checkpoints of `steps`, or those committed ones that are due and have no scores yet.

    Returns step -> whether it has scores.
    """
    config = config_of(run_dir)
    with ExitStack() as line:
        if is_from_server() and not steps:
            # Commits come faster than evaluations end. Whoever waits already will see all of them.
            run = RunDir(config.resolved_run_dir())
            if not line.enter_context(first_in_line(run, "evaluate")):
                get_run_logger().info("another flow run waits already to evaluate %s", run.path)
                return {}
        return _evaluate(config, steps, in_turn=line.close)


def _evaluate(
    config: RunConfig, steps: list[int] | None, in_turn: Callable[[], None]
) -> dict[int, bool]:
    with open_run(config, "evaluate") as run:
        in_turn()
        committed = [checkpoint.step for checkpoint in run.committed_checkpoints()]
        missing = sorted(set(steps or []) - set(committed))
        if missing:
            raise InputError(
                f"{run.path} has no committed checkpoint of step {missing[0]}: it has {committed}"
            )
        scored: dict[int, bool] = {}
        with tracked(run, config):
            watch_scores(config)
            turns = iter(steps) if steps else _turns(config, run)
            with _ahead(config, lambda: next(turns, None)) as ahead:
                while (step := ahead.take() or next(turns, None)) is not None:
                    scores = evaluate_checkpoint(
                        config, step, meanwhile=ahead.beside(step), say=say
                    )
                    scored[step] = scores is not None
                    watch_scores(config)
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
    """Score each checkpoint soon after its commit, as `evaluate.order` says, until training is over."""
    run = RunDir(config.resolved_run_dir())
    tried: set[Tried] = set()
    over = following.training_over

    def choose() -> int | None:
        return _next(config, run, tried, training_over=over.is_set())

    watch_scores(config)
    with _ahead(config, choose) as ahead:
        while not following.stop.is_set():
            was_over = over.is_set()
            if (step := ahead.take() or choose()) is not None:
                try:
                    evaluate_checkpoint(config, step, following.stop, ahead.beside(step), say)
                except EvaluationCancelled:
                    get_run_logger().warning("evaluation of step %d was cancelled", step)
                watch_scores(config)
                remove_unneeded_checkpoints(config)
            elif was_over:
                return
            else:
                over.wait(LOOK_INTERVAL_S)


@contextmanager
def _ahead(config: RunConfig, choose: Callable[[], int | None]) -> Iterator[Ahead]:
    """What begins the next checkpoint while one is at its end; what nobody will wait for ends with it."""
    ahead = Ahead(config, choose, get_run_logger().warning)
    try:
        yield ahead
    finally:
        with held_off():
            ahead.close()


def _turns(config: RunConfig, run: RunDir) -> Iterator[int]:
    """The steps that are due, each when its turn comes, until none is left."""
    tried: set[Tried] = set()
    while (step := _next(config, run, tried, training_over=not is_training(run))) is not None:
        yield step


def _next(config: RunConfig, run: RunDir, tried: set[Tried], *, training_over: bool) -> int | None:
    """The step whose turn it is, which counts as tried now; leaves out those for which too many wait."""
    steps = due_steps(config, run, training_over=training_over)
    due = {step: run.checkpoint(step).identity() for step in steps}
    waiting = [step for step, identity in due.items() if (step, identity) not in tried]
    turn = take_turns(config.evaluate, waiting, training_over=training_over)
    for step in turn.left_out:
        said = leave_out(run, step, waiting=len(waiting)).said
        get_run_logger().warning("evaluation of step %d is %s", step, said)
    if not turn.steps:
        return None
    step = turn.steps[0]
    tried.add((step, due[step]))
    return step


def due_steps(config: RunConfig, run: RunDir, *, training_over: bool) -> list[int]:
    """Committed checkpoints that should have scores and have none: every Nth, and the last one.

    One that was left out stays so; a person may ask for it by its step.
    """
    steps = [checkpoint.step for checkpoint in run.committed_checkpoints()]
    wanted = [step for step in steps if is_due(config, step)]
    if steps and training_over:
        wanted.append(steps[-1])
    return [step for step in sorted(set(wanted)) if _is_missing(run.evaluation(step))]


def _is_missing(evaluation: EvaluationDir) -> bool:
    return evaluation.scores() is None and evaluation.left_out() is None
