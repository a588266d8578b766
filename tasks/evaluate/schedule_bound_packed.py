"""A sharper bound where requests or metrics are so long that they cannot fill workers or cores evenly.

It asks of an end whether the pieces could be packed in the time before it, as into bins, and knows two
proofs that they cannot. Martello and Toth's (L2): pieces that are so long that nothing of some length
fits beside them have a bin each. Reachable sums: no choice of pieces fills a bin better than so far,
and all bins filled so far hold less than all pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.evaluate.schedule_bound import Units, earliest_end_s
from tasks.evaluate.schedule_types import Worker, WorkItem

_HALVINGS = 10
_MOST_LENGTHS = 100
"""With more different lengths than this, pieces fill the gaps of each other."""
_MOST_PROOFS = 12
_GRID = 1 << 13
"""Steps into which a bin is divided to find the sums that can be reached."""
_MOST_A_BIN = 40

Packing = tuple[list[Units], int, float]
"""Pieces, bins, and the time that is no bin's: before the first piece and after the last."""


def packed_bound_s(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    cpu_cores: int,
    bound_s: float,
    makespan_s: float,
) -> float:
    """The latest end, from `bound_s` to a plan's, that is proven to be too early."""
    ready_s = sorted(worker.ready_s for worker in workers)
    inference = (
        (item.metric_s / item.metric_parts, (item.request_s, item.requests))
        for item in items
        if item.requests
    )
    metrics = (
        (earliest_end_s(item, ready_s), (item.metric_s / item.metric_parts, item.metric_parts))
        for item in items
        if item.metric_s > 0
    )
    packings = [
        *_nested(inference, len(workers), ready_s[0]),
        *_nested(metrics, cpu_cores, 0.0),
    ]
    for pieces, bins, outside_s in packings:
        bound_s = _latest_disproved_s(pieces, bins, outside_s, bound_s, makespan_s)
    return bound_s


def _nested(pieces: Iterable[tuple[float, Units]], bins: int, outside_s: float) -> list[Packing]:
    """Those with the longest wait beside them, then more and more; each must fit into what the
    shortest wait among them leaves."""
    packings: list[Packing] = []
    units: dict[float, int] = {}
    ordered = sorted(pieces, key=lambda pair: -pair[0])
    for at, (wait_s, (length_s, count)) in enumerate(ordered):
        if length_s > 0:
            units[length_s] = units.get(length_s, 0) + count
        is_last_of_wait = at + 1 == len(ordered) or ordered[at + 1][0] < wait_s
        if is_last_of_wait and sum(units.values()) > bins:
            packings.append((sorted(units.items(), reverse=True), bins, outside_s + wait_s))
    step = max(len(packings) / _MOST_PROOFS, 1.0)
    chosen = {len(packings) - 1 - int(number * step) for number in range(_MOST_PROOFS)}
    return [packing for at, packing in enumerate(packings) if at in chosen]


def _latest_disproved_s(
    pieces: list[Units], bins: int, outside_s: float, bound_s: float, makespan_s: float
) -> float:
    if len(pieces) > _MOST_LENGTHS or not _too_small(pieces, bins, 1.002 * bound_s - outside_s):
        return bound_s
    low_s, high_s = bound_s, makespan_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if _too_small(pieces, bins, middle_s - outside_s):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _too_small(pieces: list[Units], bins: int, size_s: float) -> bool:
    """Whether it is proven that the pieces do not fit into so many bins of this size."""
    if size_s <= 0:
        return True
    return _beside_too_little(pieces, bins, size_s) or _sums_too_low(pieces, bins, size_s)


def _beside_too_little(pieces: list[Units], bins: int, size_s: float) -> bool:
    for least_s in [length for length, _ in pieces if length <= size_s / 2] or [size_s / 2]:
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
        if free < 0 or rest_s > ((free + beside) * size_s - beside_s) * (1 + 1e-9):
            return True
    return False


def _sums_too_low(pieces: list[Units], bins: int, size_s: float) -> bool:
    """Sums are taken of lengths that are rounded down, so none that is possible is missed; what
    rounding has taken is given back for as many pieces as fit."""
    shortest_s = pieces[-1][0]
    if shortest_s * _MOST_A_BIN < size_s:  # Rounding would give back more than is proven.
        return False
    step_s, most = size_s / _GRID, int(size_s / shortest_s) + 1
    within = (1 << (_GRID + 1)) - 1
    reached = 1
    for length, count in pieces:
        width = int(length * (1 - 1e-9) / step_s)
        for _ in range(min(count, int(size_s / length * (1 + 1e-9)))):
            reached |= (reached << width) & within
    fullest_s = min((reached.bit_length() - 1 + most) * step_s, size_s)
    return bins * fullest_s * (1 + 1e-9) < sum(length * count for length, count in pieces)
