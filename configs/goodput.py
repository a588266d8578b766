"""What a goodput plan is made from, and what it says: the types behind `overland plan goodput`.

Times are seconds, sizes bytes. An interval is the training time from one checkpoint to the next,
without the time that saving costs.
"""

from __future__ import annotations

import math

from configs.records import Record


class Assumptions(Record):
    """The job, how often it fails, and what saving and restarting take."""

    gpus: int
    gpus_per_node: int = 8
    node_mtbf_s: float
    """Mean time between failures of one node: the whole job fails as often as its nodes together."""
    state_size_bytes: float
    """Weights and optimizer state of the whole job: what one checkpoint writes."""
    write_bandwidth_bytes_per_s: float
    """With which the whole job writes to storage."""
    blocked_s: float
    """What one save costs training: blocked at it, and slowed down while it is written."""
    detect_s: float
    """From a failure to the moment at which it is noticed and the job ended."""
    restart_s: float
    """From there to the first new step: diagnosis, scheduling, start-up, load from storage."""
    memory_fraction: float = 0.0
    """Share of failures that snapshots in node memory survive: crashed processes, not lost nodes."""
    memory_restart_s: float = 0.0
    """Like restart_s, after such a failure."""
    memory_interval_s: float | None = None
    """From one snapshot in memory to the next; None: the best."""
    step_time_s: float | None = None
    """One optimizer step: intervals are whole steps then."""

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return math.ceil(self.gpus / self.gpus_per_node)

    @property
    def failure_rate(self) -> float:
        """Failures of the whole job per second, while all its nodes are at work."""
        return self.nodes / self.node_mtbf_s

    @property
    def write_s(self) -> float:
        """How long one checkpoint is written."""
        return self.state_size_bytes / self.write_bandwidth_bytes_per_s


class Intervals(Record):
    """When to save."""

    storage_s: float
    """From one checkpoint to the next."""
    memory_s: float
    """From one snapshot in memory to the next: storage_s over a whole number."""
    storage_steps: int | None = None
    memory_steps: int | None = None

    @property
    def snapshots(self) -> int:
        """Snapshots in memory for each that becomes a checkpoint."""
        return max(round(self.storage_s / self.memory_s), 1)


class Shares(Record):
    """Where the wall time goes, as shares of it: together 1."""

    productive: float
    recomputed: float
    """Work that a failure threw away."""
    checkpoint: float
    """Training stalled by saves."""
    detection: float
    waiting: float = 0.0
    """For nodes, when no spare one is left."""
    restart: float


class Reference(Record):
    """An interval to compare with, and what it brings."""

    name: str
    interval_s: float
    goodput: float


class Simulated(Record):
    """Goodput of simulated runs with independent (exponential) failures."""

    goodput: float
    low: float
    high: float
    """95 % confidence interval of the mean."""
    failures: int
    repetitions: int
    shares: Shares


class TraceResult(Record):
    """Goodput of simulated runs under a real fault trace."""

    path: str
    goodput: float
    low: float
    high: float
    """5th and 95th percentile over draws of nodes out of the trace."""
    shares: Shares
    draws: int
    days: float
    spare_nodes: int
    node_mtbf_s: float
    """Of the whole trace: nodes x days / faults."""
    failures_per_day: float
    """Faults on nodes that the job held."""
    struck_while_down: float
    """Share of those that struck while the job was down already."""
    expected_while_down: float
    """That share if the same number of faults were independent."""
    model_goodput: float
    """The model's, at the rate of failures that the trace has."""
    best_interval_s: float
    """Of some intervals around the model's, that with the best goodput on the trace."""
    best_goodput: float


class GoodputPlan(Record):
    """The best checkpoint interval, and the goodput to expect."""

    assumptions: Assumptions
    nodes: int
    mtbf_s: float
    """Mean time between failures of the whole job."""
    write_s: float
    best_interval_s: float
    best_interval_steps: int | None
    memory_interval_s: float | None
    memory_interval_steps: int | None
    good_interval_s: tuple[float, float]
    """Intervals in this range lose at most 0.1 points against the best."""
    goodput: float
    parts: Shares
    given: Reference | None = None
    """The interval that was asked for."""
    references: list[Reference]
    simulated: Simulated
    trace: TraceResult | None = None
    notes: list[str]
    """What to know about these figures, one sentence each."""
