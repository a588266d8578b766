"""Turns the pieces of a plan into shards: which requests they are, and when they are expected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tasks.evaluate.schedule_fill import Piece
from tasks.evaluate.schedule_types import PlannedShard, PlanOptions, Range, Worker, WorkItem


def cut_pieces(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    pieces: Sequence[Sequence[Piece]],
    options: PlanOptions,
) -> list[PlannedShard]:
    """Each worker's pieces as shards, with their expected times."""
    cursors = [_Cursor(item.ranges or ((0, item.requests),)) for item in items]
    shards: list[PlannedShard] = []
    for worker, own in zip(workers, pieces, strict=True):
        now_s = worker.ready_s
        for piece in own:
            item = items[piece.item]
            for count in _counts(piece.requests, item.request_s, options.max_shard_s):
                for start, stop in cursors[piece.item].take(count):
                    end_s = now_s + options.shard_overhead_s + (stop - start) * item.request_s
                    shards.append(PlannedShard(item.task, start, stop, worker.name, now_s, end_s))
                    now_s = end_s
    return shards


def infer_ends_s(items: Sequence[WorkItem], shards: Sequence[PlannedShard]) -> list[float]:
    """When each item's last shard is expected."""
    ends_s = {item.task: item.under_way_s for item in items}
    for shard in shards:
        ends_s[shard.task] = max(ends_s[shard.task], shard.end_s)
    return list(ends_s.values())


def _counts(requests: int, request_s: float, max_shard_s: float) -> list[int]:
    """A piece as nearly equal numbers of requests, none above the longest shard."""
    shards = min(max(math.ceil(requests * request_s / max_shard_s), 1), requests)
    small, more = divmod(requests, shards)
    return [small + 1] * more + [small] * (shards - more)


class _Cursor:
    """Hands out an item's requests from its ranges, in order."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._ranges = list(reversed(ranges))

    def take(self, count: int) -> Iterator[Range]:
        """The next `count` requests; more than one range where they do not lie together."""
        while count:
            start, stop = self._ranges.pop()
            taken = min(count, stop - start)
            if start + taken < stop:
                self._ranges.append((start + taken, stop))
            count -= taken
            yield start, start + taken
