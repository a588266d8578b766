"""Simulates trials that each load the model from storage, on nodes whose loads share a bandwidth."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from configs.evaluation_simulation import EvaluationSetting


@dataclass(frozen=True, slots=True)
class Trial:
    """A process on one GPU: it starts, loads the model, computes, and leaves."""

    work_s: float
    """Inference."""
    held_s: float = 0.0
    """How long it keeps its GPU after that: for metrics."""


@dataclass(frozen=True, slots=True)
class TrialsRun:
    """How a list of trials went."""

    infer_end_s: float
    end_s: float


@dataclass(slots=True)
class _Node:
    """The loads of one node. Equal shares: each gets bandwidth / loads, which only their number changes,
    so what a load has received is told by one number for all."""

    bytes_per_s: float
    received: float = 0.0
    now_s: float = 0.0
    loads: list[tuple[float, int, int]] = field(default_factory=list)
    """What a load must have received to be done, its order, its trial."""

    def advance(self, now_s: float) -> None:
        if self.loads:
            self.received += (now_s - self.now_s) * self.bytes_per_s / len(self.loads)
        self.now_s = now_s

    def next_end_s(self) -> float:
        left = max(self.loads[0][0] - self.received, 0.0)
        return self.now_s + left * len(self.loads) / self.bytes_per_s


def run_trials(trials: Sequence[Trial], setting: EvaluationSetting) -> TrialsRun:
    """Run the trials in their order, each on the first GPU that is free.

    The first ones are dealt out over the nodes, so that as few as can be load on one at a time.
    """
    nodes = [_Node(setting.storage_bytes_per_s) for _ in range(setting.nodes)]
    events: list[tuple[float, int, str, int, int]] = []
    """Time, order, what, node, trial."""
    version = [0] * len(nodes)
    started = order = 0
    infer_end_s = end_s = 0.0

    def post(time_s: float, what: str, node: int, trial: int) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (time_s, order, what, node, trial))

    def post_next_load(node: int) -> None:
        version[node] += 1
        if nodes[node].loads:
            post(nodes[node].next_end_s(), "loaded", node, version[node])

    def start_next(now_s: float, node: int) -> None:
        nonlocal started
        if started == len(trials):
            return
        trial, started = started, started + 1
        if setting.process_start_s:
            post(now_s + setting.process_start_s, "started", node, trial)
        else:
            begin_load(now_s, node, trial)

    def begin_load(now_s: float, node: int, trial: int) -> None:
        nodes[node].advance(now_s)
        target = nodes[node].received + setting.model_bytes
        heapq.heappush(nodes[node].loads, (target, trial, trial))
        post_next_load(node)

    for _ in range(setting.gpus_per_node):
        for node in range(setting.nodes):
            start_next(0.0, node)
    while events:
        now_s, _, what, node, value = heapq.heappop(events)
        if what == "started":
            begin_load(now_s, node, value)
        elif what == "freed":
            start_next(now_s, node)
        elif value == version[node]:  # Else the node's loads have changed since.
            nodes[node].advance(now_s)
            trial = heapq.heappop(nodes[node].loads)[2]
            infer_end_s = max(infer_end_s, now_s + trials[trial].work_s)
            freed_s = now_s + trials[trial].work_s + trials[trial].held_s
            end_s = max(end_s, freed_s)
            post(freed_s, "freed", node, trial)
            post_next_load(node)
    return TrialsRun(infer_end_s, end_s)
