"""What a goodput plan can be made from: anything else is refused, with numbers that would fit.

The limits leave out what no job is and what floating-point numbers cannot tell apart any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from configs.errors import InputError
from configs.goodput import Assumptions, Intervals
from tasks.recover.fault_trace import DAY_S
from tasks.recover.goodput_model import expected_goodput
from tasks.recover.goodput_optimum import MAX_SNAPSHOTS, best_intervals

_MOST_GPUS = 10_000_000
_MOST_S = 1e9
"""Of what is done once a save or a restart: 30 years."""
_LEAST_INTERVAL_S = 1e-3
_MOST_MTBF_S = 1e15
_LEAST_GOODPUT = 0.01

Limits = tuple[float | None, float, float]
"""A value, where one is given; the least and the most that it may be."""


def check_numbers(
    assumptions: Assumptions, *, interval_s: float | None, spare_nodes: int | None
) -> None:
    """Each number by itself."""
    _check_within(
        {
            "--gpus": (assumptions.gpus, 1, _MOST_GPUS),
            "--gpus-per-node": (assumptions.gpus_per_node, 1, _MOST_GPUS),
            "the MTBF of one node in seconds": (assumptions.node_mtbf_s, 1e-3, _MOST_MTBF_S),
            "the size of the state in bytes": (assumptions.state_size_bytes, 1, 1e18),
            "--write-bandwidth (in bytes/s)": (
                assumptions.write_bandwidth_bytes_per_s,
                1,
                1e18,
            ),
            "--step-time-s": (assumptions.step_time_s, _LEAST_INTERVAL_S, _MOST_S),
            "--memory-interval-s": (assumptions.memory_interval_s, _LEAST_INTERVAL_S, _MOST_S),
            "--interval-s": (interval_s, _LEAST_INTERVAL_S, _MOST_MTBF_S),
            "--blocked-s": (assumptions.blocked_s, 0, _MOST_S),
            "--detect-s": (assumptions.detect_s, 0, _MOST_S),
            "--restart-s": (assumptions.restart_s, 0, _MOST_S),
            "--memory-restart-s": (assumptions.memory_restart_s, 0, _MOST_S),
            "--spare-nodes": (spare_nodes, 0, _MOST_GPUS),
        }
    )
    if not 0 <= assumptions.memory_fraction <= 0.999:
        raise InputError(
            "--restart-from-memory-fraction is a share of the failures, from 0 to 0.999 (0.75: three"
            f" of four leave the memory intact); it is {assumptions.memory_fraction}"
        )


def check_interval(assumptions: Assumptions, interval_s: float | None) -> None:
    """A checkpoint must be written before the next one is begun."""
    write_s = assumptions.write_s
    memory_s = assumptions.memory_interval_s if assumptions.memory_fraction else None
    if memory_s is not None and memory_s * MAX_SNAPSHOTS < write_s:
        raise InputError(
            f"snapshots in memory every {memory_s:g} s are too many beside checkpoints that take"
            f" {write_s:.4g} s to write; an interval of at least {write_s / MAX_SNAPSHOTS:.4g} s would fit"
        )
    if interval_s is None:
        return
    period_s = interval_s + assumptions.blocked_s
    if period_s < write_s:
        needed = assumptions.state_size_bytes / period_s
        raise InputError(
            f"a checkpoint every {interval_s:g} s cannot be written: one takes {write_s:.4g} s at"
            f" {assumptions.write_bandwidth_bytes_per_s / 1e9:.4g} GB/s; an interval of at least"
            f" {math.ceil(write_s - assumptions.blocked_s)} s would fit, or {needed / 1e9:.4g} GB/s"
        )
    if memory_s is not None and memory_s > interval_s:
        raise InputError(
            f"snapshots in memory every {memory_s:g} s are rarer than checkpoints every"
            f" {interval_s:g} s; an interval of at most {interval_s:g} s would fit"
        )


def checked_intervals(assumptions: Assumptions) -> Intervals:
    """The best intervals. A run that gets (almost) nowhere has none, and is refused."""
    if (best := _intervals_with_progress(assumptions)) is not None:
        return best
    mtbf_s = 1 / assumptions.failure_rate
    parts = _parts_of_a_life(assumptions)
    needed_s = sum(parts.values())
    spent = ", ".join(f"{what} {part_s:.4g} s" for what, part_s in parts.items() if part_s)
    raise InputError(
        f"no progress is possible: a failure comes every {mtbf_s:.3g} s on average, but to get a step"
        f" further takes {needed_s:.4g} s ({spent}){_what_fits(assumptions, needed_s)}"
    )


def _what_fits(assumptions: Assumptions, needed_s: float) -> str:
    """The MTBF, and the size of the job, with which there is progress."""
    fitting_s = needed_s
    while fitting_s < _MOST_MTBF_S:
        node_mtbf_s = fitting_s * assumptions.nodes
        rarer = assumptions.model_copy(update={"node_mtbf_s": node_mtbf_s})
        if _intervals_with_progress(rarer) is not None:
            gpus = int(assumptions.node_mtbf_s / fitting_s) * assumptions.gpus_per_node
            days = f"; a node MTBF of at least {node_mtbf_s / DAY_S:.3g} days would fit"
            return days + (f", or at most {gpus:,} GPUs" if gpus else "")
        fitting_s *= 2
    return ""


def _check_within(limits: Mapping[str, Limits]) -> None:
    for option, (value, least, most) in limits.items():
        if value is not None and not least <= value <= most:  # nan too
            raise InputError(f"{option} must be from {least:g} to {most:g}; it is {_shown(value)}")


def _shown(value: float) -> str:
    """A whole number may have a thousand digits, which no float can hold."""
    return f"{value:g}" if abs(value) < 1e300 or isinstance(value, float) else "far out of that"


def _parts_of_a_life(assumptions: Assumptions) -> dict[str, float]:
    """What must pass between two failures for the run to get further."""
    from_memory_s = assumptions.memory_restart_s if assumptions.memory_fraction else 0.0
    return {
        "to notice the failure": assumptions.detect_s,
        "to restart": max(assumptions.restart_s, from_memory_s),
        "to train a step": assumptions.step_time_s or 0.0,
        "blocked by a save": assumptions.blocked_s,
        "to write a checkpoint": assumptions.write_s,
    }


def _intervals_with_progress(assumptions: Assumptions) -> Intervals | None:
    """The best intervals; None where even these bring (almost) nothing."""
    down_s = assumptions.detect_s + assumptions.restart_s
    needed_s = down_s + (assumptions.step_time_s or 0.0) + assumptions.write_s
    if needed_s * assumptions.failure_rate > 20:
        return None  # The model's numbers would be too large for a computer.
    best = best_intervals(assumptions)
    return best if expected_goodput(assumptions, best) >= _LEAST_GOODPUT else None
