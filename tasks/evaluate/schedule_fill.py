"""The first stage of a plan: cuts tasks over workers so that each is inferred by its deadline.

Tasks go in the order of their deadlines to the worker with most room, whole where they fit, else cut
at the deadline (McNaughton's wrap-around rule: few cuts, no gaps). Long requests, which leave gaps,
are placed before all others, in one of several ways, and the short ones run around them.
"""

from __future__ import annotations

import heapq
import random
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tasks.evaluate.schedule_types import PlanOptions, WorkItem

COARSE_SHARE = 0.02
"""A request that takes more than this share of the whole plan's time, is placed before the others."""
_EPSILON = 1e-9

Spread = Literal["level", "tight"]
"""On the workers with most room, or on those with least."""


@dataclass(frozen=True, slots=True)
class Way:
    """How long requests are placed."""

    spread: Spread
    due_first: bool = False
    """Those with the earliest deadline first, else the longest."""
    shuffle: int = 0
    """Not quite the longest first: each number gives another order."""

    def order(
        self, items: Sequence[WorkItem], deadlines_s: Sequence[float], long: set[int]
    ) -> list[int]:
        """Positions of the items with long requests, as they are placed."""
        order = sorted(long, key=lambda at: (-items[at].request_s, deadlines_s[at], at))
        if self.due_first:
            order.sort(key=lambda at: deadlines_s[at])
        if self.shuffle:
            draw = random.Random(self.shuffle)  # noqa: S311 (no secret; the same in each process)
            weights = {at: items[at].request_s * draw.uniform(0.7, 1.0) for at in order}
            order.sort(key=lambda at: -weights[at])
        return order


WAYS = (
    Way("level"),
    Way("tight"),
    Way("level", due_first=True),
    Way("tight", due_first=True),
)
MORE_WAYS = tuple(
    Way(spread, shuffle=number) for number in range(1, 13) for spread in ("level", "tight")
)
"""For when the others leave a gap."""


@dataclass(frozen=True, slots=True)
class Piece:
    """So many requests of an item on one worker."""

    item: int
    requests: int
    deadline_s: float
    work_s: float


@dataclass(slots=True)
class _Load:
    """What one worker has been given."""

    ready_s: float
    short_s: float = 0.0
    """Of the tasks that were placed in the order of their deadlines."""
    long: list[tuple[float, float]] = field(default_factory=list)
    """(deadline, work) of those placed before them, in order."""
    pieces: list[Piece] = field(default_factory=list)

    def room_s(self, deadline_s: float) -> float:
        """How much more work with this deadline fits, so that all deadlines hold."""
        end_s = self.ready_s + self.short_s
        later = [entry for entry in self.long if entry[0] > deadline_s]
        end_s += sum(work_s for _, work_s in self.long[: len(self.long) - len(later)])
        room_s = deadline_s - end_s
        for long_deadline_s, work_s in later:
            end_s += work_s
            room_s = min(room_s, long_deadline_s - end_s)
        return room_s


@dataclass(frozen=True, slots=True)
class Costs:
    """What a piece of an item takes beside its share of the work."""

    each_s: float
    """Overhead of a piece."""
    per_s: float
    """Overhead of the shards that a long piece is cut into, for each second of work."""
    least_s: float
    """A task is not cut into less."""

    @classmethod
    def of(cls, options: PlanOptions) -> Costs:
        overhead_s = options.shard_overhead_s
        return cls(overhead_s, overhead_s / options.max_shard_s, options.min_shard_s)


def fill(
    items: Sequence[WorkItem],
    ready_s: Sequence[float],
    deadlines_s: Sequence[float],
    costs: Costs,
    ways: Sequence[Way] = WAYS,
) -> list[list[Piece]] | None:
    """Each worker's pieces in the order in which it does them; None where a deadline cannot be met."""
    long_s = COARSE_SHARE * max([0.0, *deadlines_s])
    todo = [at for at, item in enumerate(items) if item.requests]
    is_long = {at for at in todo if items[at].request_s > long_s}
    for way in ways if is_long else ways[:1]:
        filled = _fill(items, ready_s, deadlines_s, costs, todo, is_long, way)
        if filled is not None:
            return filled
    return None


def _fill(
    items: Sequence[WorkItem],
    ready_s: Sequence[float],
    deadlines_s: Sequence[float],
    costs: Costs,
    todo: list[int],
    is_long: set[int],
    way: Way,
) -> list[list[Piece]] | None:
    loads = [_Load(ready) for ready in ready_s]
    for at in way.order(items, deadlines_s, is_long):
        if not _place_long(items[at], at, loads, deadlines_s[at], costs, way.spread):
            return None
    short = sorted(
        (at for at in todo if at not in is_long),
        key=lambda at: (deadlines_s[at], -items[at].request_s, at),
    )
    heap = [
        (load.ready_s + sum(work for _, work in load.long), worker)
        for worker, load in enumerate(loads)
    ]
    heapq.heapify(heap)
    for at in short:
        if not _place_short(items[at], at, loads, heap, deadlines_s[at], costs):
            return None
    for load in loads:
        load.pieces.sort(key=lambda piece: piece.deadline_s)
    return [load.pieces for load in loads]


def _place_long(
    item: WorkItem,
    at: int,
    loads: list[_Load],
    deadline_s: float,
    costs: Costs,
    spread: Spread,
) -> bool:
    """Place a task of long requests, some on each worker."""
    request_s = item.request_s * (1 + costs.per_s)
    rooms = [load.room_s(deadline_s) for load in loads]
    fits = [max(int((room - costs.each_s + _EPSILON) / request_s), 0) for room in rooms]
    if sum(fits) < item.requests:
        return False
    order = sorted(range(len(loads)), key=lambda worker: rooms[worker])
    if spread == "level":
        counts = _levelled(item.requests, rooms, fits, request_s)
    else:
        counts, left = [0] * len(loads), item.requests
        for worker in order:
            counts[worker] = min(fits[worker], left)
            left -= counts[worker]
    for worker, count in enumerate(counts):
        if count:
            _put(loads[worker], at, count, deadline_s, costs.each_s + count * request_s, long=True)
    return True


def _levelled(requests: int, rooms: list[float], fits: list[int], request_s: float) -> list[int]:
    """Give each request to the worker with most room left."""
    heap = [(-room, worker) for worker, room in enumerate(rooms) if fits[worker]]
    heapq.heapify(heap)
    counts = [0] * len(rooms)
    for _ in range(requests):
        room, worker = heapq.heappop(heap)
        counts[worker] += 1
        if counts[worker] < fits[worker]:
            heapq.heappush(heap, (room + request_s, worker))
    return counts


def _place_short(
    item: WorkItem,
    at: int,
    loads: list[_Load],
    heap: list[tuple[float, int]],
    deadline_s: float,
    costs: Costs,
) -> bool:
    """Place a task of short requests, on as few workers as its deadline allows."""
    request_s = item.request_s * (1 + costs.per_s)
    left, used = item.requests, []
    while left and heap:
        level_s, worker = heapq.heappop(heap)
        used.append((level_s, worker))
        room_s = loads[worker].room_s(deadline_s) - costs.each_s + _EPSILON
        if room_s < 0:
            if not loads[worker].long:
                break  # The others have less.
            continue
        count = left if left * request_s <= room_s else int(room_s / request_s)
        if count == 0 or (count < left and count * request_s < costs.least_s):
            continue
        work_s = costs.each_s + count * request_s
        _put(loads[worker], at, count, deadline_s, work_s, long=False)
        used[-1] = (level_s + work_s, worker)
        left -= count
    for entry in used:
        heapq.heappush(heap, entry)
    return not left


def _put(load: _Load, at: int, count: int, deadline_s: float, work_s: float, *, long: bool) -> None:
    load.pieces.append(Piece(at, count, deadline_s, work_s))
    if long:
        insort(load.long, (deadline_s, work_s))
    else:
        load.short_s += work_s
