"""`overland plan goodput`: the best checkpoint interval, the goodput to expect, and whether that holds.

A stage's entry like task.py, but without Prefect: planning runs no flow, and a typing mistake must be
answered at once.
"""

from __future__ import annotations

import math
from pathlib import Path

from configs.goodput import (
    Assumptions,
    GoodputPlan,
    Intervals,
    Reference,
    Simulated,
    TraceResult,
)
from tasks.recover.fault_trace import DAY_S, INFINITEHBD_NODES, read_fault_trace
from tasks.recover.goodput_limits import check_interval, check_numbers, checked_intervals
from tasks.recover.goodput_model import expected_goodput, expected_shares
from tasks.recover.goodput_optimum import (
    good_range_s,
    intervals_at,
    references,
)
from tasks.recover.goodput_simulation import simulate
from tasks.recover.goodput_trace import simulate_trace

__all__ = ["INFINITEHBD_NODES", "default_spares", "plan_goodput", "trace_mtbf_s"]

REPETITIONS = 200
TRACE_DRAWS = 20
SPARE_SHARE = 0.1
"""Spare nodes, as a share of the job's, where nothing else is said."""


def plan_goodput(
    assumptions: Assumptions,
    *,
    given_interval_s: float | None = None,
    trace_path: Path | None = None,
    trace_nodes: int = INFINITEHBD_NODES,
    spare_nodes: int | None = None,
    seed: int = 0,
) -> GoodputPlan:
    """Plan for these assumptions; impossible ones are refused with numbers that fit."""
    check_numbers(assumptions, interval_s=given_interval_s, spare_nodes=spare_nodes)
    trace = read_fault_trace(trace_path, trace_nodes) if trace_path else None
    check_interval(assumptions, given_interval_s)
    best = checked_intervals(assumptions)
    shares = expected_shares(assumptions, best)
    simulated = simulate(assumptions, best, repetitions=REPETITIONS, seed=seed)
    spares = default_spares(assumptions) if spare_nodes is None else spare_nodes
    traced = (
        simulate_trace(
            assumptions, best, trace, trace_path, spare_nodes=spares, draws=TRACE_DRAWS, seed=seed
        )
        if trace and trace_path
        else None
    )
    has_memory = assumptions.memory_fraction > 0
    return GoodputPlan(
        assumptions=assumptions,
        nodes=assumptions.nodes,
        mtbf_s=1 / assumptions.failure_rate,
        write_s=assumptions.write_s,
        best_interval_s=best.storage_s,
        best_interval_steps=best.storage_steps,
        memory_interval_s=best.memory_s if has_memory else None,
        memory_interval_steps=best.memory_steps if has_memory else None,
        good_interval_s=good_range_s(assumptions, best),
        goodput=shares.productive,
        parts=shares,
        given=_given(assumptions, given_interval_s),
        references=references(assumptions),
        simulated=simulated,
        trace=traced,
        notes=_notes(assumptions, best, shares.productive, simulated, traced),
    )


def default_spares(assumptions: Assumptions) -> int:
    """Spare nodes where nothing is said."""
    return math.ceil(SPARE_SHARE * assumptions.nodes)


def trace_mtbf_s(path: Path, nodes: int = INFINITEHBD_NODES) -> float:
    """Mean time between the faults of one node in a trace."""
    return read_fault_trace(path, nodes).node_mtbf_s


def _given(assumptions: Assumptions, interval_s: float | None) -> Reference | None:
    if interval_s is None:
        return None
    goodput = expected_goodput(assumptions, intervals_at(assumptions, interval_s))
    return Reference(name="given", interval_s=interval_s, goodput=goodput)


def _notes(
    assumptions: Assumptions,
    best: Intervals,
    goodput: float,
    simulated: Simulated,
    traced: TraceResult | None,
) -> list[str]:
    notes = []
    period_s = best.storage_s + best.snapshots * assumptions.blocked_s
    if period_s < 1.1 * assumptions.write_s + (assumptions.step_time_s or 0.0):
        notes.append(
            "A save costs so little that the write time sets the interval: storage is busy all the"
            " time, and a faster one allows a shorter interval."
        )
    if not simulated.low <= goodput <= simulated.high:
        notes.append(
            f"The model ({100 * goodput:.3f} %) lies just outside of the simulation's 95 % interval"
            f" ({100 * simulated.low:.3f} to {100 * simulated.high:.3f} %), as one in 20 does by chance."
        )
    if traced is not None:
        notes.append(_trace_note(goodput, assumptions, traced))
        gain = traced.best_goodput - traced.goodput
        if gain > 0.001:
            notes.append(
                f"On the trace an interval of {traced.best_interval_s:.0f} s would be better by"
                f" {100 * gain:.2f} points."
            )
    return notes


def _trace_note(goodput: float, assumptions: Assumptions, traced: TraceResult) -> str:
    """How far the model is from real faults, and why; reasons may cancel each other out."""
    reasons = []
    rate_points = 100 * (traced.model_goodput - goodput)
    if abs(rate_points) >= 0.1:
        planned = assumptions.failure_rate * DAY_S
        reasons.append(
            f"{traced.failures_per_day:.2f} failures a day instead of {planned:.2f}"
            f" ({rate_points:+.1f} points)"
        )
    if traced.shares.waiting >= 0.001:
        reasons.append(
            f"waiting for nodes, with {traced.spare_nodes} spare"
            f" ({-100 * traced.shares.waiting:+.1f} points)"
        )
    if traced.struck_while_down > 1.5 * traced.expected_while_down:
        reasons.append(
            f"bursts ({100 * traced.struck_while_down:.0f} % of the failures strike a job that is down"
            f" already, {100 * traced.expected_while_down:.1f} % would if they were independent)"
        )
    points = 100 * (traced.goodput - goodput)
    why = f": {', '.join(reasons)}" if reasons else ""
    return f"Real faults bring {points:+.1f} points against the model{why}."
