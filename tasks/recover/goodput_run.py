"""One simulated training run: failures strike it, and its wall time is accounted for.

The rules are those of :mod:`goodput_model`; when failures come, and when nodes are there to restart
on, is the caller's. Work is counted in periods (work, then a snapshot), of which every q-th snapshot
is also written to storage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from configs.goodput import Assumptions, Intervals, Shares


@dataclass
class Seconds:
    """Wall time by part. `worked` is all work, also what was thrown away."""

    worked: float = 0.0
    recomputed: float = 0.0
    checkpoint: float = 0.0
    detection: float = 0.0
    waiting: float = 0.0
    restart: float = 0.0

    @property
    def kept(self) -> float:
        """Work that counts."""
        return self.worked - self.recomputed

    @property
    def wall(self) -> float:
        """All parts."""
        return self.worked + self.checkpoint + self.detection + self.waiting + self.restart


def shares_of(runs: Iterable[Seconds]) -> Shares:
    """Where the wall time of all runs together went."""
    runs = list(runs)
    wall_s = sum(run.wall for run in runs)
    return Shares(
        productive=sum(run.kept for run in runs) / wall_s,
        recomputed=sum(run.recomputed for run in runs) / wall_s,
        checkpoint=sum(run.checkpoint for run in runs) / wall_s,
        detection=sum(run.detection for run in runs) / wall_s,
        waiting=sum(run.waiting for run in runs) / wall_s,
        restart=sum(run.restart for run in runs) / wall_s,
    )


@dataclass
class SimulatedRun:
    """A run that trains from second 0 on. Tell it of failures in the order of time."""

    assumptions: Assumptions
    intervals: Intervals
    seconds: Seconds = field(default_factory=Seconds)
    failures: int = 0
    failures_while_down: int = 0
    ready_at: float = 0.0
    """When training goes on, or has gone on, after the last failure."""
    from_memory: bool = False
    """Whether that restart finds snapshots in memory."""
    _position: int = 0
    """Periods done at `ready_at`."""
    _stored: int = 0
    """Periods that the newest checkpoint in storage holds."""
    _failed_at: float = 0.0
    _nodes_at: float = 0.0

    def fail(self, time: float, *, memory_survives: bool, nodes_at: float = -math.inf) -> None:
        """The job fails; nodes to restart on are there from `nodes_at` on."""
        self.failures += 1
        if time < self.ready_at:
            self.failures_while_down += 1
            self._add_downtime(time)
            self.from_memory = self.from_memory and memory_survives
        else:
            self._add_downtime(self.ready_at)
            self._train(time - self.ready_at, lasting=False)
            self.from_memory = memory_survives
        if not self.from_memory:
            self.seconds.recomputed += (self._position - self._stored) * self.intervals.memory_s
            self._position = self._stored
        self._failed_at = time
        self.set_nodes_at(nodes_at)

    def set_nodes_at(self, time: float) -> None:
        """Nodes for the restart under way are there from this time on (infinite: not yet known)."""
        plan = self.assumptions
        restart_s = plan.memory_restart_s if self.from_memory else plan.restart_s
        self._nodes_at = max(time, self._failed_at + plan.detect_s)
        self.ready_at = self._nodes_at + restart_s

    def finish(self, time: float) -> Seconds:
        """End the run, with what it has at work counted as kept; returns the account."""
        self._add_downtime(min(time, self.ready_at))
        if time > self.ready_at:
            self._train(time - self.ready_at, lasting=True)
        return self.seconds

    def _add_downtime(self, until: float) -> None:
        """Account for the time since the last failure, up to a time before training goes on."""
        noticed_at = min(self._failed_at + self.assumptions.detect_s, until)
        nodes_at = min(max(self._nodes_at, noticed_at), until)
        self.seconds.detection += noticed_at - self._failed_at
        self.seconds.waiting += nodes_at - noticed_at
        self.seconds.restart += until - nodes_at

    def _train(self, duration_s: float, *, lasting: bool) -> None:
        """Train for a time; then work since the last snapshot is thrown away, unless it lasts."""
        work_s, blocked_s = self.intervals.memory_s, self.assumptions.blocked_s
        periods, rest_s = divmod(duration_s, work_s + blocked_s)
        begun_s = min(rest_s, work_s)
        self.seconds.worked += periods * work_s + begun_s
        self.seconds.checkpoint += periods * blocked_s + rest_s - begun_s
        if not lasting:
            self.seconds.recomputed += begun_s
        self._store(duration_s)
        self._position += int(periods)

    def _store(self, duration_s: float) -> None:
        """Note the newest checkpoint whose write has ended, of a training time from `ready_at` on.

        A checkpoint that was snapshot but not written before it is written from the beginning.
        """
        written_s = duration_s - self.assumptions.write_s
        if written_s < 0:
            return
        every = self.intervals.snapshots
        snapshot = self._position + int(
            written_s // (self.intervals.memory_s + self.assumptions.blocked_s)
        )
        self._stored = max(self._stored, snapshot // every * every)
