"""Losses in metric records: a jump is kept, for no error line may ever tell of it.

Of a block with many records a sample is read; where it jumps, the records before it are read too, so
that the first high one is found.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from tasks.diagnose.block_pieces import Pieces, positions

_LOSS = re.compile(
    rb"(?:loss|(?<![A-Za-z])(?:ce|nll|xent|cross_entropy))['\"]?[ :=]{1,20}['\"]?([+-]?\d[\d.]*(?:[eE][+-]?\d+)?)"
)
_SAMPLES_PER_BLOCK = 24
_HISTORY = 64
_MIN_HISTORY = 8
_HIGH_RATIO = 1.5
_MAX_JUMPS = 20
"""Of a source."""
_MAX_JUMPS_IN_ALL = 200
_EPSILON = 1e-6


@dataclass
class _Series:
    """Recent losses of one kind of record, and from where on one is high."""

    values: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    high_from: float = math.inf

    def add(self, loss: float) -> None:
        """Take note of a loss."""
        self.values.append(loss)

    def settle(self) -> None:
        """Judge what follows by what there is now."""
        if len(self.values) >= _MIN_HISTORY:
            self.high_from = _HIGH_RATIO * max(median(self.values), 0.0) + _EPSILON


class LossWatch:
    """Follows the losses of one source."""

    def __init__(self) -> None:
        self._jumps_in_all = 0
        self.begin()

    def begin(self) -> None:
        """Another source follows."""
        self._series: dict[int, _Series] = {}
        self._jumps = 0

    def reads(self, text: str) -> bool:
        """Whether the text reports a loss."""
        return _loss_of(text.encode()) is not None

    def jumps(
        self, index: int, count: int, last: int, ids: list[int], pieces: Pieces
    ) -> Iterator[int]:
        """Positions of the first high losses among the records of one template in a block.

        `last` is where the last of `count` records stands.
        """
        series = self._series.setdefault(index, _Series())
        searched = 0
        was_high = False
        for sample, at in enumerate(_sample(ids, index, count, last)):
            if sample % _MIN_HISTORY == 0:
                series.settle()
            loss = _loss_of(pieces[at])
            if loss is None:
                continue
            high = loss > series.high_from
            if high and not was_high and self._has_room():
                first = _first_high(index, ids[searched : at + 1], searched, pieces, series)
                yield at if first is None else first
            series.add(loss)
            searched, was_high = at + 1, high

    def _has_room(self) -> bool:
        self._jumps += 1
        self._jumps_in_all += 1
        return self._jumps <= _MAX_JUMPS and self._jumps_in_all <= _MAX_JUMPS_IN_ALL


def _first_high(
    index: int, ids: list[int], offset: int, pieces: Pieces, series: _Series
) -> int | None:
    for at in positions(ids, index, ids.count(index)):
        loss = _loss_of(pieces[offset + at])
        if loss is not None and loss > series.high_from:
            return offset + at
    return None


def _sample(ids: list[int], index: int, count: int, last: int) -> Iterator[int]:
    """All positions of an id, or some that are spread evenly, with the last."""
    if count <= _SAMPLES_PER_BLOCK:
        yield from positions(ids, index, count)
        return
    at, step = -1, (last + 1) / _SAMPLES_PER_BLOCK
    for sample in range(_SAMPLES_PER_BLOCK):
        if at < last:
            at = ids.index(index, max(at + 1, int(sample * step)))
            yield at
    if at < last:
        yield last


def _loss_of(piece: bytes) -> float | None:
    match = _LOSS.search(piece[:2048])
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None  # 1.2.3 is no number
