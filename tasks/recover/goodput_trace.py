"""Runs a simulated job on a cluster whose nodes fail as in a real trace.

A fault takes its node away until the trace says that it is back; a spare node steps in. With no
spare left the job waits for the first node to come back. A node that comes back becomes a spare, behind
the others. Where memory is assumed to survive a share of the failures, that share of the faults is
taken as crashed processes: they take no node away.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from configs.goodput import Assumptions, Intervals, TraceResult
from tasks.recover.fault_trace import DAY_S, FaultTrace, Outage, draw_cluster
from tasks.recover.goodput_model import expected_goodput
from tasks.recover.goodput_optimum import intervals_at, least_interval_s
from tasks.recover.goodput_run import SimulatedRun, shares_of

_INTERVAL_FACTORS = (0.25, 0.5, 0.71, 1.41, 2.0, 4.0)
"""Intervals around the model's that are tried on the trace too."""


@dataclass
class _Cluster:
    """Which nodes the job holds, which are spare, which are out and until when."""

    run: SimulatedRun
    needed: int
    held: set[int]
    spare: deque[int]
    out: list[tuple[float, int]] = field(default_factory=list)
    """A heap of returns; stale where `until` says later."""
    until: dict[int, float] = field(default_factory=dict)

    def fault(self, outage: Outage, *, only_process: bool) -> None:
        """A fault strikes a node, wherever it is."""
        self.return_nodes(outage.start_s)
        holds = outage.node in self.held
        if not only_process:
            self._take_away(outage)
        if holds:
            self._fill()
            nodes_at = outage.start_s if self._is_full() else math.inf
            self.run.fail(outage.start_s, memory_survives=only_process, nodes_at=nodes_at)

    def return_nodes(self, time: float) -> None:
        """Nodes whose outage has ended by then become spares, or step in at once."""
        while self.out and self.out[0][0] <= time:
            back_at, node = heapq.heappop(self.out)
            if self.until.get(node) != back_at:
                continue
            del self.until[node]
            self.spare.append(node)
            if not self._is_full():
                self._fill()
                if self._is_full():
                    self.run.set_nodes_at(back_at)

    def _take_away(self, outage: Outage) -> None:
        if outage.node in self.held:
            self.held.remove(outage.node)
        elif outage.node in self.spare:
            self.spare.remove(outage.node)
        until = max(outage.end_s, self.until.get(outage.node, 0.0))
        self.until[outage.node] = until
        heapq.heappush(self.out, (until, outage.node))

    def _fill(self) -> None:
        while self.spare and not self._is_full():
            self.held.add(self.spare.popleft())

    def _is_full(self) -> bool:
        return len(self.held) == self.needed


def simulate_trace(
    assumptions: Assumptions,
    intervals: Intervals,
    trace: FaultTrace,
    path: Path,
    *,
    spare_nodes: int,
    draws: int,
    seed: int,
) -> TraceResult:
    """Goodput of runs over the trace's whole span, each on other nodes drawn out of it."""

    def runs_at(tried: Intervals) -> list[SimulatedRun]:
        streams = np.random.default_rng(seed).spawn(draws)  # the same draws for every interval
        return [_run_once(assumptions, tried, trace, spare_nodes, stream) for stream in streams]

    runs = runs_at(intervals)
    goodputs = [run.seconds.kept / run.seconds.wall for run in runs]
    best_s, best = _best_around(assumptions, intervals, float(np.mean(goodputs)), runs_at)
    failures = sum(run.failures for run in runs)
    rate = failures / (draws * trace.span_s)
    with_rate = assumptions.model_copy(
        update={"node_mtbf_s": assumptions.nodes / rate if rate else math.inf}
    )
    shares = shares_of(run.seconds for run in runs)
    return TraceResult(
        path=str(path),
        goodput=float(np.mean(goodputs)),
        low=float(np.percentile(goodputs, 5)),
        high=float(np.percentile(goodputs, 95)),
        shares=shares,
        draws=draws,
        days=trace.span_s / DAY_S,
        spare_nodes=spare_nodes,
        node_mtbf_s=trace.node_mtbf_s,
        failures_per_day=rate * DAY_S,
        struck_while_down=sum(run.failures_while_down for run in runs) / max(failures, 1),
        expected_while_down=shares.detection + shares.waiting + shares.restart,
        model_goodput=expected_goodput(with_rate, intervals) if rate else 1.0,
        best_interval_s=best_s,
        best_goodput=best,
    )


def _best_around(
    assumptions: Assumptions,
    intervals: Intervals,
    goodput: float,
    runs_at: Callable[[Intervals], list[SimulatedRun]],
) -> tuple[float, float]:
    """The best of some intervals on the trace, and its goodput."""
    tried = {intervals.storage_s: goodput}
    for factor in _INTERVAL_FACTORS:
        step_s = assumptions.step_time_s or 1.0
        storage_s = step_s * round(intervals.storage_s * factor / step_s)
        if storage_s >= least_interval_s(assumptions):
            accounts = [run.seconds for run in runs_at(intervals_at(assumptions, storage_s))]
            tried[storage_s] = float(np.mean([account.kept / account.wall for account in accounts]))
    best_s = max(tried, key=lambda interval_s: tried[interval_s])
    return best_s, tried[best_s]


def _run_once(
    assumptions: Assumptions,
    intervals: Intervals,
    trace: FaultTrace,
    spare_nodes: int,
    random: np.random.Generator,
) -> SimulatedRun:
    nodes = assumptions.nodes
    outages = draw_cluster(trace, nodes + spare_nodes, random)
    run = SimulatedRun(assumptions, intervals)
    cluster = _Cluster(run, nodes, set(range(nodes)), deque(range(nodes, nodes + spare_nodes)))
    crashes: Sequence[bool] = (random.random(len(outages)) < assumptions.memory_fraction).tolist()
    for outage, only_process in zip(outages, crashes, strict=True):
        cluster.fault(outage, only_process=only_process)
    cluster.return_nodes(trace.span_s)
    run.finish(trace.span_s)
    return run
