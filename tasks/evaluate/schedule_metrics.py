"""The second stage of a plan: metrics on CPU cores, forwards to know when, backwards to know by when."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tasks.evaluate.schedule_types import PlannedMetric, WorkItem


def run_metrics(
    items: Sequence[WorkItem], ready_s: Sequence[float], core_ready_s: Sequence[float]
) -> list[PlannedMetric]:
    """Give each core, when it is free, the longest metric whose task is inferred."""
    arrivals = sorted(
        (ready, -item.metric_s / item.metric_parts, at, part)
        for at, (item, ready) in enumerate(zip(items, ready_s, strict=True))
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
        length, at, part = heapq.heappop(waiting)
        end_s = now_s - length
        planned.append(PlannedMetric(items[at].task, part, core, now_s, end_s))
        heapq.heappush(cores, (end_s, core))
    planned.sort(key=lambda metric: (metric.start_s, metric.core))
    return planned


def latest_infer_ends_s(
    items: Sequence[WorkItem], order: Sequence[int] | None, cpu_cores: int, end_s: float
) -> list[float]:
    """By when each task must be inferred so that all metrics are done at `end_s`, if metrics start in
    `order` (positions of items); None: as if each had a core to itself."""
    if order is None or cpu_cores >= sum(item.metric_parts for item in items if item.metric_s > 0):
        return [end_s - item.metric_s / item.metric_parts for item in items]
    cores = [-end_s] * cpu_cores  # Filled from the end: the latest free moment first.
    deadlines_s = [end_s] * len(items)
    for at in reversed(order):
        item = items[at]
        if item.metric_s <= 0:
            continue
        for _ in range(item.metric_parts):
            start_s = -cores[0] - item.metric_s / item.metric_parts
            heapq.heapreplace(cores, -start_s)
            deadlines_s[at] = min(deadlines_s[at], start_s)
    return deadlines_s
