"""Which ranks hold the others up: their own compute time in a step against the median of all.

All ranks take equally long for a step, since they wait for each other. So each measures what it does
by itself: from the beginning of a step to the moment when it has its gradients and begins to wait for
the others'. On GPUs the compute stream's time counts, in which the overlapped reduction is not.
What tensor- and pipeline-parallel ranks wait for each other within a pass is in it: where one of them
is slow, all ranks of its model replica are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch
import torch.distributed as dist

from configs.schema import AnomalyConfig
from tasks.train.distributed import World

FLOOR_S = 0.002
"""A rank that is less than this behind the median holds nobody up."""

_Moment = Any
"""time.monotonic() or a recorded CUDA event."""


@dataclass(frozen=True)
class Straggler:
    """A rank that takes longer than the others."""

    rank: int
    busy_s: float
    usual_s: float
    """The median of all ranks."""


def find_stragglers(
    busy_s: Sequence[float], ratio: float, floor_s: float = FLOOR_S
) -> list[Straggler]:
    """The ranks whose time is more than `ratio` times the median (of two ranks: the faster's)."""
    usual_s = median_low(busy_s)
    return [
        Straggler(rank, own_s, usual_s)
        for rank, own_s in enumerate(busy_s)
        if own_s > max(usual_s * ratio, usual_s + floor_s)
    ]


class BusyClock:
    """This rank's own time in each step."""

    def __init__(self, device: torch.device) -> None:
        self._now: Callable[[], _Moment] = _cuda_event if device.type == "cuda" else time.monotonic
        self._begun: _Moment | None = None
        self._spans: list[tuple[_Moment, _Moment]] = []

    def begin(self) -> None:
        """The step begins."""
        self._begun = self._now()

    def stop(self) -> None:
        """The gradients are there; the rest of the step is spent with the others."""
        if self._begun is not None:
            self._spans.append((self._begun, self._now()))
            self._begun = None

    def take(self) -> float:
        """The usual busy time of a step since the last call: the median, which a pause of the garbage
        collector does not move. 0 without any step."""
        times_s = [_seconds(*span) for span in self._spans]
        self._spans.clear()
        return median_low(times_s) if times_s else 0.0


class StragglerWatch:
    """Compares the ranks from time to time, and tells of those that have become stragglers."""

    def __init__(self, config: AnomalyConfig, world: World) -> None:
        self._ratio = config.straggler_ratio
        self._world = world
        self._known: frozenset[int] = frozenset()
        self.clock = BusyClock(world.device)

    def compare(self) -> list[Straggler]:
        """The ranks that are stragglers now and were none at the last comparison. For all ranks at once."""
        own = torch.tensor([self.clock.take()], dtype=torch.float64)
        everybody = torch.empty(self._world.size, dtype=torch.float64)
        dist.all_gather_into_tensor(everybody, own, group=self._world.control)
        found = find_stragglers(everybody.tolist(), self._ratio)
        new = [straggler for straggler in found if straggler.rank not in self._known]
        self._known = frozenset(straggler.rank for straggler in found)
        return new


def _cuda_event() -> _Moment:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds(begun: _Moment, ended: _Moment) -> float:
    if isinstance(begun, float):
        return float(ended - begun)
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1000
