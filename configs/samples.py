"""Where a training stands in its data: positions, what a rollback leaves out, and the wrap at the end.

A position counts samples along the stream that training reads, one global batch after another.
What lies in a skipped span is jumped over. Beyond the end the stream begins anew, and jumps over the
same samples again, so a run that has left out batches still has data for its last steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.errors import CorpusError
from configs.schema import TrainConfig

Span = tuple[int, int]
"""Positions from (included) to (excluded)."""


@dataclass(frozen=True)
class SampleStream:
    """The order in which a run reads its samples."""

    batch: int
    """Samples of a global batch."""
    total: int
    """Samples until the stream begins anew: a multiple of the batch."""
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, train: TrainConfig, spans: Sequence[Span] = ()) -> SampleStream:
        """The stream of a run, without what it skips."""
        batch = train.global_batch_size
        return cls(batch, train.steps * batch, tuple((first, end) for first, end in spans))

    def seek(self, position: int) -> int:
        """Where the next batch begins that is not skipped."""
        covered = max((end for _, end in self.spans), default=0)
        limit = max(position, covered) + self.total + self.batch
        while (jumped := self._jump(position)) != position:
            position = jumped
            if position > limit:
                raise CorpusError(
                    f"all of the {self.total} training samples are skipped, by spans "
                    f"{list(self.spans)}: there is nothing left to train on"
                )
        return position

    def after(self, position: int, batches: int = 1) -> int:
        """The position once so many more batches are read."""
        for _ in range(batches):
            position = self.seek(position) + self.batch
        return position

    def index(self, position: int) -> int:
        """Number of the sample at a position."""
        return position % self.total

    def _jump(self, position: int) -> int:
        """The first batch behind a span that this one touches; spans hold for later rounds too."""
        for first, end in self.spans:
            for seen in range(position % self.total, position + 1, self.total):
                if first - self.batch < seen < end:
                    return position + -(-(end - seen) // self.batch) * self.batch
        return position
