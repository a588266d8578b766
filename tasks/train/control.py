"""What every rank tells all others in each step, without waiting for them.

One small all-reduce (the maximum) over gloo is begun as the step begins and taken in as it ends, when
the gradients have brought the ranks together anyway. So all ranks learn at the same step that one of
them was asked to stop, has no free snapshot buffer, or could not write its part of a checkpoint.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist

from tasks.train.distributed import World
from tasks.train.stop import STOP_FILE

STOP_REASONS = ("", STOP_FILE, "SIGUSR1", "SIGTERM")
"""By rising urgency: the maximum counts."""


@dataclass(frozen=True)
class Word:
    """A rank's word, or the maximum of all."""

    stop: int = 0
    """Index into STOP_REASONS."""
    busy: int = 0
    """1: no buffer is free for a snapshot."""
    failed_step: int = 0
    """Step of a save that a rank cannot take part in."""


class Control:
    """Exchanges the ranks' words, one round a step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def begin(self, word: Word) -> None:
        """Tell the others, and go on."""
        self._sent = torch.tensor(astuple(word), dtype=torch.int64)
        if self._world.size > 1:
            self._work = dist.all_reduce(
                self._sent, op=dist.ReduceOp.MAX, group=self._world.control, async_op=True
            )

    def end(self) -> Word:
        """The maximum over all ranks."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        assert self._sent is not None, "begin() comes first"
        return Word(*(int(value) for value in self._sent))
