"""`overland plan goodput`: the best checkpoint interval, the goodput to expect, and whether that holds.

A stage's entry like task.py, but without Prefect: planning runs no flow, and a typing mistake must be
answered at once.
"""

from __future__ import annotations

import math
from pathlib import Path

from configs.errors import InputError
from configs.goodput import (
    Assumptions,
    GoodputPlan,
    Intervals,
    Reference,
    Simulated,
    TraceResult,
)
from tasks.recover.fault_trace import DAY_S, INFINITEHBD_NODES, read_fault_trace
from tasks.recover.goodput_model import expected_goodput, expected_shares
from tasks.recover.goodput_optimum import (
    best_intervals,
    good_range_s,
    intervals_at,
    references,
)
from tasks.recover.goodput_simulation import simulate
from tasks.recover.goodput_trace import simulate_trace

REPETITIONS = 200
TRACE_DRAWS = 20
SPARE_SHARE = 0.1
"""Spare nodes, as a share of the job's, where nothing else is said."""
_MIN_GOODPUT = 0.01


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
    _check_numbers(assumptions, spare_nodes)
    trace = read_fault_trace(trace_path, trace_nodes) if trace_path else None
    _check_interval(assumptions, given_interval_s)
    _check_progress(assumptions)
    best = best_intervals(assumptions)
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


def _check_numbers(assumptions: Assumptions, spare_nodes: int | None) -> None:
    positive = {
        "--gpus": assumptions.gpus,
        "--gpus-per-node": assumptions.gpus_per_node,
        "--mtbf": assumptions.node_mtbf_s,
        "--state-size": assumptions.state_size_bytes,
        "--write-bandwidth": assumptions.write_bandwidth_bytes_per_s,
        "--step-time-s": assumptions.step_time_s,
        "--memory-interval-s": assumptions.memory_interval_s,
    }
    for option, value in positive.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{option} must be more than zero, and finite; it is {value:g}")
    not_negative = {
        "--blocked-s": assumptions.blocked_s,
        "--detect-s": assumptions.detect_s,
        "--restart-s": assumptions.restart_s,
        "--memory-restart-s": assumptions.memory_restart_s,
        "--spare-nodes": spare_nodes or 0,
    }
    for option, number in not_negative.items():
        if not (math.isfinite(number) and number >= 0):
            raise InputError(f"{option} must be zero or more, and finite; it is {number:g}")
    if not 0 <= assumptions.memory_fraction < 1:
        raise InputError(
            "--restart-from-memory-fraction is a share of the failures, from 0 up to below 1 (0.75:"
            f" three of four leave the memory intact); it is {assumptions.memory_fraction:g}"
        )


def _check_interval(assumptions: Assumptions, interval_s: float | None) -> None:
    """A checkpoint must be written before the next one is begun."""
    if interval_s is None:
        return
    if not (math.isfinite(interval_s) and interval_s > 0):
        raise InputError(f"--interval-s must be more than zero, and finite; it is {interval_s:g}")
    write_s = assumptions.write_s
    period_s = interval_s + assumptions.blocked_s
    if period_s < write_s:
        needed = assumptions.state_size_bytes / period_s
        raise InputError(
            f"a checkpoint every {interval_s:g} s cannot be written: one takes {write_s:.4g} s at"
            f" {assumptions.write_bandwidth_bytes_per_s / 1e9:.4g} GB/s; an interval of at least"
            f" {math.ceil(write_s - assumptions.blocked_s)} s would fit, or {needed / 1e9:.4g} GB/s"
        )
    memory_s = assumptions.memory_interval_s
    if assumptions.memory_fraction and memory_s is not None and memory_s > interval_s:
        raise InputError(
            f"snapshots in memory every {memory_s:g} s are rarer than checkpoints every"
            f" {interval_s:g} s; an interval of at most {interval_s:g} s would fit"
        )


def _check_progress(assumptions: Assumptions) -> None:
    """A run that gets (almost) nowhere has no best interval."""
    mtbf_s = 1 / assumptions.failure_rate
    down_s = assumptions.detect_s + assumptions.restart_s
    step_s = assumptions.step_time_s or 0.0
    needed_s = down_s + step_s + assumptions.write_s
    hopeless = needed_s > 20 * mtbf_s
    if hopeless or expected_goodput(assumptions, best_intervals(assumptions)) < _MIN_GOODPUT:
        fitting_gpus = int(assumptions.gpus * mtbf_s / needed_s)
        step = f", train a step ({step_s:.4g} s)" if step_s else ""
        fits = f", or at most {fitting_gpus:,} GPUs" if fitting_gpus else ""
        raise InputError(
            f"no progress is possible: a failure comes every {mtbf_s:.3g} s on average, but to restart"
            f" ({down_s:.4g} s){step} and then write a checkpoint ({assumptions.write_s:.4g} s) takes"
            f" {needed_s:.4g} s; a node MTBF of at least"
            f" {assumptions.node_mtbf_s * needed_s / mtbf_s / DAY_S:.3g} days would fit{fits}"
        )


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
