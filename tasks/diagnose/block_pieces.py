"""The pieces of a block, cut out only when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from tasks.diagnose.blocks import Block, clean


class Pieces:
    """Random access to a block's pieces: to cut all of them costs more than to look them up."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.numbers = block.numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: int) -> bytes:
        """The bytes of a piece, without colours."""
        ends = self._ends
        return clean(self._block.data[ends[at - 1] + 1 if at else 0 : ends[at]])

    def tail(self, count: int) -> list[tuple[int, int, bytes]]:
        """The last pieces: index, number, text."""
        size = len(self)
        found = range(max(0, size - count), size)
        return [(at, self.numbers[at], self[at]) for at in found]

    @cached_property
    def _ends(self) -> list[int]:
        ends: list[int] = self._block.ends.tolist()
        return [*ends, len(self._block.data)]


def positions(ids: list[int], index: int, count: int) -> Iterator[int]:
    """Where the first `count` of an id stand in a list that holds that many."""
    at = -1
    for _ in range(count):
        at = ids.index(index, at + 1)
        yield at
