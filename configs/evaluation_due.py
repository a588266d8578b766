"""Which checkpoints are evaluated: said once, for those who evaluate and those who remove checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.schema import EvaluateConfig, RunConfig


def is_due(config: RunConfig, step: int) -> bool:
    """Whether the checkpoint of this step is one of every Nth, or the last one.

    The step alone tells, not the step's place among those that are there: old ones get removed.
    """
    evaluate, interval = config.evaluate, config.checkpoint.interval_steps
    return (
        evaluate.every_nth == 1
        or step % (interval * evaluate.every_nth) == 0
        or step == config.train.steps
    )


@dataclass(frozen=True)
class Turn:
    """Who is next among those that wait."""

    steps: list[int]
    """In the order of their turns."""
    left_out: list[int]
    """Too many wait for these."""


def take_turns(config: EvaluateConfig, waiting: Sequence[int], *, training_over: bool) -> Turn:
    """Order the due steps. Once training is over nothing new comes, and nothing is left out."""
    newest_first = sorted(waiting, reverse=True)
    stay = newest_first
    if config.most_waiting is not None and not training_over:
        stay = newest_first[: config.most_waiting]
    return Turn(
        steps=stay if config.order == "newest_first" else stay[::-1],
        left_out=sorted(newest_first[len(stay) :]),
    )
