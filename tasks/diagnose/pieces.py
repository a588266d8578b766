"""The pieces of a block, cut out only when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.diagnose.blocks import Block

_NEWLINE = ord("\n")


class Pieces:
    """Random access to a block's pieces: to cut all of them costs more than to look them up."""

    def __init__(self, block: Block) -> None:
        self._data = block.data
        self.numbers: Sequence[int] = block.numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: int) -> bytes:
        start = int(self._ends[at - 1]) + 1 if at else 0
        end = int(self._ends[at]) if at < len(self._ends) else len(self._data)
        return self._data[start:end]

    def tail(self, count: int) -> list[tuple[int, int, bytes]]:
        """The last pieces: index from the block's end (-1 is the last), number, text."""
        last = self._data.rsplit(b"\n", count)[-count:]
        numbers = self.numbers[-len(last) :]
        return list(zip(range(-len(last), 0), numbers, last, strict=True))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        bytes_: NDArray[Any] = np.frombuffer(self._data, dtype=np.uint8)
        return np.flatnonzero(bytes_ == _NEWLINE)


def positions(ids: list[int], index: int, count: int) -> Iterator[int]:
    """Where the first `count` of an id stand in a list that holds that many."""
    at = -1
    for _ in range(count):
        at = ids.index(index, at + 1)
        yield at
