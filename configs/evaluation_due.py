"""Which checkpoints are evaluated: said once, for those who evaluate and those who remove checkpoints."""

from __future__ import annotations

from configs.schema import RunConfig


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
