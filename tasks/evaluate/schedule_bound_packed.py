"""A sharper bound where requests or metrics are so long that they cannot fill workers or cores evenly.

It asks of an end whether the pieces could be packed in the time before it, by Martello and Toth's bound
on bins (L2): pieces that are so long that nothing of some length fits beside them have a bin each.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.evaluate.schedule_bound import Units, earliest_end_s
from tasks.evaluate.schedule_types import Worker, WorkItem

_HALVINGS = 10
_MOST_LENGTHS = 300
"""With more lengths than this, pieces fill the gaps of each other."""


def packed_bound_s(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    cpu_cores: int,
    bound_s: float,
    makespan_s: float,
) -> float:
    """The latest end, from `bound_s` to a plan's, that is proven to be too early."""
    ready_s = sorted(worker.ready_s for worker in workers)
    proofs: list[tuple[list[Units], int, float]] = []
    """Pieces, bins, and the time that is no bin's: before the first piece and after the last."""
    requests = sorted(
        ((item.metric_s / item.metric_parts, item) for item in items if item.requests),
        key=lambda pair: -pair[0],
    )
    units: list[Units] = []
    for at, (tail_s, item) in enumerate(requests):
        units.append((item.request_s, item.requests))
        if at + 1 == len(requests) or requests[at + 1][0] < tail_s:
            proofs.append((list(units), len(workers), ready_s[0] + tail_s))
    metrics = sorted(
        ((earliest_end_s(item, ready_s), item) for item in items if item.metric_s > 0),
        key=lambda pair: -pair[0],
    )
    units = []
    for at, (head_s, item) in enumerate(metrics):
        units.append((item.metric_s / item.metric_parts, item.metric_parts))
        if at + 1 == len(metrics) or metrics[at + 1][0] < head_s:
            proofs.append((list(units), cpu_cores, head_s))
    for pieces, bins, outside_s in proofs:
        low_s, high_s = bound_s, makespan_s
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2
            if _too_small(pieces, bins, middle_s - outside_s):
                low_s = middle_s
            elif low_s == bound_s and middle_s - bound_s < 0.002 * bound_s:
                break
            else:
                high_s = middle_s
        bound_s = low_s
    return bound_s


def _too_small(pieces: list[Units], bins: int, size_s: float) -> bool:
    """Whether it is proven that the pieces do not fit into so many bins of this size."""
    if len(pieces) > _MOST_LENGTHS:
        return False
    for least_s in {length for length, _ in pieces if length <= size_s / 2}:
        alone = beside = 0
        beside_s = rest_s = 0.0
        for length, count in pieces:
            if length > size_s - least_s:
                alone += count
            elif length > size_s / 2:
                beside += count
                beside_s += count * length
            elif length >= least_s:
                rest_s += count * length
        free = bins - alone - beside
        room_s = free * size_s + beside * size_s - beside_s
        if free < 0 or rest_s > room_s * (1 + 1e-9):
            return True
    return sum(count for length, count in pieces if length > size_s / 2) > bins
