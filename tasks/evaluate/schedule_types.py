"""What the planner takes and gives: work, workers, shards with their expected times.

Times are seconds from the plan's own zero. The plan is written as `schedule.json`; what really
happened goes into a file beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from configs.errors import EvaluationError
from configs.records import Record

Range = tuple[int, int]
"""Positions of requests in a task: from (included) to (excluded)."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One task of one model, or what is left of it."""

    task: str
    requests: int
    """Parts it can be cut into. A document is never cut: a part is a document with all its requests."""
    infer_s: float
    """Of all these requests on one GPU, without loading the model."""
    metric_s: float
    """Of the whole task's metric on one CPU core; it begins when the last request is answered."""
    metric_parts: int = 1
    """Equal parts of the metric that can run at the same time (1: it cannot be split)."""
    ranges: tuple[Range, ...] = ()
    """Where the requests lie in the task; empty: from 0 on. Others are done or under way."""
    under_way_s: float = 0.0
    """When those are done that workers compute now: the metric cannot begin before."""

    def __post_init__(self) -> None:
        times = (self.infer_s, self.metric_s, self.under_way_s)
        if not all(math.isfinite(time_s) and time_s >= 0 for time_s in times):
            raise EvaluationError(
                f"task {self.task!r}: times must be finite and not negative; "
                f"they are infer_s={self.infer_s}, metric_s={self.metric_s}"
            )
        left = sum(stop - start for start, stop in self.ranges)
        if self.requests < 0 or self.metric_parts < 1 or (self.ranges and left != self.requests):
            raise EvaluationError(
                f"task {self.task!r}: {self.requests} requests in {self.metric_parts} metric parts "
                f"and ranges {self.ranges} do not fit together"
            )

    @property
    def request_s(self) -> float:
        """Of one request."""
        return self.infer_s / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One GPU with a process that holds the model."""

    name: str
    node: str
    ready_s: float = 0.0
    """When it can begin: the model is staged and loaded, what it is busy with is done."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What splitting costs, and how fine it may get."""

    shard_overhead_s: float = 0.0
    """Of each shard, beside its requests: opening, a last half-full batch, writing."""
    min_shard_s: float = 0.0
    """A task is not cut into pieces below this."""
    max_shard_s: float = math.inf
    """A longer piece is cut further on its worker, so that a worker's death and a wrong prior cost little."""


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A slice of a task's requests on a worker."""

    task: str
    start: int
    stop: int
    worker: str
    start_s: float
    end_s: float

    @property
    def key(self) -> tuple[str, int, int]:
        """What it is, wherever it runs."""
        return (self.task, self.start, self.stop)


@dataclass(frozen=True, slots=True)
class PlannedMetric:
    """A metric, or a part of it, on a CPU core."""

    task: str
    part: int
    core: int
    start_s: float
    end_s: float


class SchedulePlan(Record):
    """schedule.json: who does what when, as expected."""

    shards: list[PlannedShard]
    """Each worker's in its order; workers one after another."""
    metrics: list[PlannedMetric]
    """By their start."""
    workers: list[Worker]
    cpu_cores: int
    infer_end_s: float
    makespan_s: float
    lower_bound_s: float
    """No plan can end before it; defined in docs/evaluation-planning.md."""

    def queues(self) -> dict[str, list[PlannedShard]]:
        """Worker -> its shards in order."""
        queues: dict[str, list[PlannedShard]] = {worker.name: [] for worker in self.workers}
        for shard in self.shards:
            queues[shard.worker].append(shard)
        return queues
