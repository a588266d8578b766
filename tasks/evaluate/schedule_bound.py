"""The time before which no plan can end: what plans are measured against.

The definition, with its proofs, is in docs/evaluation-planning.md. Every part holds for any plan in
which a request runs on one worker without a break, and a metric begins after its task's last request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from configs.records import Record
from tasks.evaluate.schedule_types import Worker, WorkItem

_COARSE_SHARE = 0.001
"""Below this share of the bound a single request's length makes no difference worth computing."""
_MOST_PREFIXES = 200
_PIGEONS = 40
"""Beyond so many requests a worker, one more makes less than 1/40 of a difference."""

Units = tuple[float, int]
"""Length of one indivisible piece, and how many of them there are."""


class LowerBound(Record):
    """The bound and its parts; the largest part is the bound."""

    load_s: float
    """Until the first worker has the model."""
    gpu_s: float
    """Inference spread over all workers, and the metric that must follow it."""
    chain_s: float
    """The one task that takes longest even if it had everything for itself."""
    cpu_s: float
    """Metrics spread over all cores, after the inference that must come before."""

    @property
    def total_s(self) -> float:
        return max(self.load_s, self.gpu_s, self.chain_s, self.cpu_s)


def lower_bound(
    items: Sequence[WorkItem],
    workers: Sequence[Worker],
    cpu_cores: int,
    core_ready_s: Sequence[float] = (),
) -> LowerBound:
    """The bound for this work on these workers; `core_ready_s` says when cores become free."""
    ready_s = sorted(worker.ready_s for worker in workers)
    cores_s = sorted(core_ready_s) or [0.0] * cpu_cores
    heads_s = [earliest_end_s(item, ready_s) for item in items]
    chain_s = max(
        (
            _metric_starts_s(head, item, cores_s) + item.metric_s / item.metric_parts
            for head, item in zip(heads_s, items, strict=True)
        ),
        default=0.0,
    )
    to_infer = [item for item in items if item.requests]
    return LowerBound(
        load_s=ready_s[0] if to_infer else 0.0,
        gpu_s=_gpu_bound_s(to_infer, ready_s, chain_s),
        chain_s=chain_s,
        cpu_s=_cpu_bound_s(items, heads_s, ready_s, cores_s),
    )


def _metric_starts_s(head_s: float, item: WorkItem, cores_s: Sequence[float]) -> float:
    """When the task's metric can begin: it is inferred, and a core is free."""
    return max(head_s, cores_s[0]) if item.metric_s > 0 else head_s


def fluid_end_s(work_s: float, ready_s: Sequence[float]) -> float:
    """When workers that become ready at these (sorted) times have done `work_s` together, at best."""
    total_ready_s = 0.0
    for count, ready in enumerate(ready_s, start=1):
        total_ready_s += ready
        end_s = (work_s + total_ready_s) / count
        if count == len(ready_s) or end_s <= ready_s[count]:
            return end_s
    raise AssertionError("there is at least one worker")


def earliest_end_s(item: WorkItem, ready_s: Sequence[float]) -> float:
    """When the task's requests can be answered if it has all workers for itself."""
    if not item.requests:
        return item.under_way_s
    return max(_all_answered_s(item, ready_s), item.under_way_s)


def _all_answered_s(item: WorkItem, ready_s: Sequence[float]) -> float:
    request_s = item.request_s
    if ready_s[0] == ready_s[-1]:
        return ready_s[0] + -(-item.requests // len(ready_s)) * request_s
    low = fluid_end_s(item.infer_s, ready_s)
    if request_s <= _COARSE_SHARE * low:
        return low
    # The answer is some worker's ready time and a whole number of requests: near the fluid end.
    ends = sorted(
        ready + (int(max(low - ready, 0.0) / request_s) + extra) * request_s
        for ready in ready_s
        for extra in (0, 1)
    )
    at = bisect_left(
        ends, True, key=lambda end: _capacity(end, ready_s, request_s) >= item.requests
    )
    return max(low, ends[at]) if at < len(ends) else low


def _capacity(end_s: float, ready_s: Sequence[float], request_s: float) -> int:
    """Requests that can be answered by then."""
    slack = 1e-9 * request_s
    return sum(int((end_s - ready + slack) / request_s) for ready in ready_s if ready < end_s)


def _gpu_bound_s(items: Sequence[WorkItem], ready_s: Sequence[float], known_s: float) -> float:
    """For each metric length: all tasks whose metric is at least that long must be inferred, and the
    last of them is followed by its metric."""
    ordered = sorted(items, key=lambda item: -item.metric_s / item.metric_parts)
    totals_s = list(accumulate(item.infer_s for item in ordered))
    best_s = 0.0
    for item, total_s in zip(ordered, totals_s, strict=True):
        best_s = max(best_s, fluid_end_s(total_s, ready_s) + item.metric_s / item.metric_parts)
    longest_s = max((item.request_s for item in ordered), default=0.0)
    if longest_s <= _COARSE_SHARE * max(best_s, known_s):
        return best_s
    every = max(len(ordered) // _MOST_PREFIXES, 1)
    for at in range(len(ordered) - 1, -1, -every):
        tail_s = ordered[at].metric_s / ordered[at].metric_parts
        # A later task's request that is longer than its deadline is later begins before this one's.
        begun_s = sum(
            later.requests
            * max(later.request_s - tail_s + later.metric_s / later.metric_parts, 0.0)
            for later in ordered[at + 1 :]
        )
        fluid_s = fluid_end_s(totals_s[at] + begun_s, ready_s)
        units = ((item.request_s, item.requests) for item in ordered[: at + 1])
        packed_s = ready_s[0] + pigeonhole_s(units, len(ready_s))
        best_s = max(best_s, fluid_s + tail_s, packed_s + tail_s)
    return best_s


def pigeonhole_s(units: Iterable[Units], machines: int) -> float:
    """Of the longest k x machines + 1 pieces, some machine gets k + 1: at least the shortest of them."""
    ordered = sorted(units, reverse=True)
    counts = list(accumulate(count for _, count in ordered))
    best_s = ordered[0][0] if ordered else 0.0
    for each in range(1, _PIGEONS + 1):
        last = each * machines + 1
        if last > counts[-1]:
            break
        total_s, needed, at = 0.0, each + 1, bisect_left(counts, last)
        available = last - (counts[at - 1] if at else 0)
        while needed:
            taken = min(needed, available)
            total_s += taken * ordered[at][0]
            needed -= taken
            at -= 1
            available = ordered[at][1]
        best_s = max(best_s, total_s)
    return best_s


def _cpu_bound_s(
    items: Sequence[WorkItem],
    heads_s: Sequence[float],
    ready_s: Sequence[float],
    cores_s: Sequence[float],
) -> float:
    """For each moment: metrics whose inference cannot be done before it must all run after it; and
    Johnson's rule, for all workers and all cores as one fast machine each."""
    cpu_cores = len(cores_s)
    measured = [
        (_metric_starts_s(head, item, cores_s), item)
        for head, item in zip(heads_s, items, strict=True)
        if item.metric_s > 0
    ]
    if not measured:
        return 0.0
    parts = sum(item.metric_parts for _, item in measured)
    if cpu_cores >= parts:
        return 0.0  # Each metric has a core: chain_s says it all.
    best_s = johnson_s(items, len(ready_s), cpu_cores, start_s=ready_s[0])
    # The n-th core to start does so when n tasks are inferred and n cores are free.
    inferred_s = sorted(head for head, item in measured for _ in range(item.metric_parts))
    starts_s = [max(pair) for pair in zip(inferred_s, cores_s, strict=False)]
    all_s = sum(item.metric_s for _, item in measured)
    best_s = max(best_s, fluid_end_s(all_s, starts_s))
    ordered = sorted(measured, key=lambda pair: -pair[0])
    totals_s = list(accumulate(item.metric_s for _, item in ordered))
    for at in range(len(ordered) - 1, -1, -max(len(ordered) // _MOST_PREFIXES, 1)):
        head_s = ordered[at][0]
        parts_s = ((i.metric_s / i.metric_parts, i.metric_parts) for _, i in ordered[: at + 1])
        packed_s = max(totals_s[at] / cpu_cores, pigeonhole_s(parts_s, cpu_cores))
        best_s = max(best_s, head_s + packed_s)
    return best_s


def johnson_order(items: Sequence[WorkItem], workers: int, cpu_cores: int) -> list[int]:
    """Positions of the items in Johnson's order for two machines: short inference first while the
    metric is longer, then long metric first."""

    def rank(at: int) -> tuple[int, float]:
        infer_s, metric_s = items[at].infer_s / workers, items[at].metric_s / cpu_cores
        if not items[at].requests:
            return (-1, -metric_s)
        return (0, infer_s) if infer_s < metric_s else (1, -metric_s)

    return sorted(range(len(items)), key=rank)


def johnson_s(items: Sequence[WorkItem], workers: int, cpu_cores: int, start_s: float) -> float:
    """The best end if all workers were one machine, so many times faster, and all cores another."""
    infer_end_s, metric_end_s = start_s, 0.0
    for at in johnson_order(items, workers, cpu_cores):
        if items[at].requests:
            infer_end_s += items[at].infer_s / workers
            metric_end_s = max(metric_end_s, infer_end_s)
        metric_end_s += items[at].metric_s / cpu_cores
    return metric_end_s
