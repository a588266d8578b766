"""How much longer one arm of a benchmark takes than another, on a machine that is never quiet.

Steps that ran next to each other are paired: what slows the machine for longer than a step slows
both, and cancels in their ratio. The median of the ratios' logarithms does not mind the pairs that
something struck in the middle.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 10_000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Overhead:
    """Relative extra time (0.02: two percent) with its bootstrap 95 % interval."""

    value: float
    low: float
    high: float


def paired_overhead(times_s: Sequence[float], bare_times_s: Sequence[float]) -> Overhead:
    """Overhead of the first arm over the second; the same index means next to each other."""
    ratios = np.log(np.asarray(times_s) / np.asarray(bare_times_s))
    random = np.random.default_rng(0)
    resamples = random.choice(ratios, size=(_RESAMPLES, len(ratios)))
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(np.median(resamples, axis=1), [tail, 1 - tail])
    value, low, high = np.expm1([np.median(ratios), low, high])
    return Overhead(float(value), float(low), float(high))


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage collection in the middle of a measurement, which would strike some step or other."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
