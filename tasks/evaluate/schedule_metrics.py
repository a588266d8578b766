"""The second stage of a plan: metrics on CPU cores, forwards to know when, backwards to know by when."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tasks.evaluate.schedule_types import PlannedMetric, WorkItem


def run_metrics(
    items: Sequence[WorkItem],
    ready_s: Sequence[float],
    core_ready_s: Sequence[float],
    ranks: Sequence[float] | None = None,
) -> list[PlannedMetric]:
    """Give each core, when it is free, a metric whose task is inferred: the one with the lowest rank,
    or the longest."""
    lengths_s = [item.metric_s / item.metric_parts for item in items]
    ranks = ranks or [-length_s for length_s in lengths_s]
    arrivals = sorted(
        (ready, rank, at, part)
        for at, (item, ready, rank) in enumerate(zip(items, ready_s, ranks, strict=True))
        if item.metric_s > 0
        for part in range(item.metric_parts)
    )
    cores = [(ready, core) for core, ready in enumerate(core_ready_s)]
    heapq.heapify(cores)
    waiting: list[tuple[float, int, int]] = []
    planned: list[PlannedMetric] = []
    next_arrival, now_s = 0, 0.0
    while waiting or next_arrival < len(arrivals):
        free_s, core = heapq.heappop(cores)
        now_s = max(now_s, free_s) if waiting else max(free_s, arrivals[next_arrival][0])
        while next_arrival < len(arrivals) and arrivals[next_arrival][0] <= now_s:
            heapq.heappush(waiting, arrivals[next_arrival][1:])
            next_arrival += 1
        _, at, part = heapq.heappop(waiting)
        end_s = now_s + lengths_s[at]
        planned.append(PlannedMetric(items[at].task, part, core, now_s, end_s))
        heapq.heappush(cores, (end_s, core))
    planned.sort(key=lambda metric: (metric.start_s, metric.core))
    return planned


def latest_infer_ends_s(
    items: Sequence[WorkItem], chains: Sequence[Sequence[int]] | None, end_s: float
) -> list[float]:
    """By when each task must be inferred so that all metrics are done at `end_s`, if each core runs its
    chain of metrics (positions of items); None: as if each metric had a core to itself."""
    lengths_s = [item.metric_s / item.metric_parts for item in items]
    if chains is None:
        return [end_s - length_s for length_s in lengths_s]
    latest_s = [end_s] * len(items)
    for chain in chains:
        free_s = end_s
        for at in reversed(chain):
            free_s -= lengths_s[at]
            latest_s[at] = min(latest_s[at], free_s)
    return latest_s
