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
    free_gpus: int = 0

    def advance(self, now_s: float) -> None:
        if self.loads:
            self.received += (now_s - self.now_s) * self.bytes_per_s / len(self.loads)
        self.now_s = now_s

    def next_end_s(self) -> float:
        left = max(self.loads[0][0] - self.received, 0.0)
        return self.now_s + left * len(self.loads) / self.bytes_per_s


def run_trials(trials: Sequence[Trial], setting: EvaluationSetting) -> TrialsRun:
    """Run the trials in their order, each on the first GPU that is free.

    Of nodes with a free GPU, the one with the fewest loads takes the next trial.
    """
    nodes = [
        _Node(setting.storage_bytes_per_s, free_gpus=setting.gpus_per_node)
        for _ in range(setting.nodes)
    ]
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

    def start_trials(now_s: float) -> None:
        nonlocal started
        while started < len(trials):
            free = [at for at, node in enumerate(nodes) if node.free_gpus]
            if not free:
                return
            node = min(free, key=lambda at: (len(nodes[at].loads), -nodes[at].free_gpus, at))
            nodes[node].free_gpus -= 1
            if setting.process_start_s:
                post(now_s + setting.process_start_s, "started", node, started)
            else:
                begin_load(now_s, node, started)
            started += 1

    def begin_load(now_s: float, node: int, trial: int) -> None:
        nodes[node].advance(now_s)
        target = nodes[node].received + setting.model_bytes
        heapq.heappush(nodes[node].loads, (target, trial, trial))
        post_next_load(node)

    start_trials(0.0)
    while events:
        now_s, _, what, node, value = heapq.heappop(events)
        if what == "started":
            begin_load(now_s, node, value)
        elif what == "freed":
            nodes[node].free_gpus += 1
            start_trials(now_s)
        elif value == version[node]:  # Else the node's loads have changed since.
            nodes[node].advance(now_s)
            trial = heapq.heappop(nodes[node].loads)[2]
            infer_end_s = max(infer_end_s, now_s + trials[trial].work_s)
            freed_s = now_s + trials[trial].work_s + trials[trial].held_s
            end_s = max(end_s, freed_s)
            post(freed_s, "freed", node, trial)
            post_next_load(node)
    return TrialsRun(infer_end_s, end_s)
