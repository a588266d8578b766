"""Expected goodput of training that saves in the background and restarts after failures: in closed form.

Failures strike the job with rate L (exponential times between them, also while it restarts). A share
f of them leaves the snapshots in node memory intact; after the others only storage helps. Work goes
on for m seconds, then a snapshot blocks it for c seconds (a period p = m + c); every q-th snapshot
is also written to storage, which takes W seconds beside training. A failure costs D seconds until it
is noticed and R (from memory: Rm) until training goes on; another failure in between begins both anew.
A write that a crashed process interrupted begins again when training does.

With f = 0 and q = 1, each failure begins a new life of the run. A life of T seconds keeps every
checkpoint k with k p + W <= T, so that on average exp(-L W) / (exp(L p) - 1) of them remain, m seconds
each; the life and the way back to the next take exp(L (D + R)) / L. That gives

    goodput = L m exp(-L (W + D + R)) / (exp(L (m + c)) - 1)

which is the reciprocal of Daly's expected run time (his equation for exponential failures) once W = 0
and the write blocks training instead: c = W. See J. T. Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006) 303-312. The
best m does not depend on W: W only is the least possible period, for one write runs at a time.

With f > 0 a life lasts until the next failure that takes memory with it, rate Ln = (1 - f) L. The time
to finish a period through crashes has the Laplace transform phi(s), found from its renewal equation
(A. Duda, "The effects of checkpointing on program execution time", Information Processing Letters 16
(1983) 221-229, has the expectation in the same way). The k-th checkpoint of a life remains with
probability phi(Ln)^(k q) psi(Ln), where psi is the same for the write; the sum over k is geometric.
"""

from __future__ import annotations

import math

from configs.goodput import Assumptions, Intervals, Shares


def expected_shares(assumptions: Assumptions, intervals: Intervals) -> Shares:
    """Where the wall time of a long run goes, on average."""
    rate, survived = assumptions.failure_rate, assumptions.memory_fraction
    lost_rate = rate * (1 - survived)
    work_s, blocked_s = intervals.memory_s, assumptions.blocked_s
    from_memory_s = assumptions.detect_s + assumptions.memory_restart_s
    from_storage_s = assumptions.detect_s + assumptions.restart_s

    # A life: times at work, separated by restarts from memory.
    back = _restarted_before_loss(rate, survived, from_memory_s)
    times_at_work = 1 / (1 - survived * back)
    work_and_stall_s = times_at_work / rate
    stall_s = times_at_work * _stall_s(rate, work_s, blocked_s)
    tries = times_at_work * survived / (1 - survived * _within(rate, from_memory_s))
    memory_down_s = tries * _within(rate, from_memory_s) / rate
    memory_detection_s = tries * _within(rate, assumptions.detect_s) / rate

    # The way back from storage, after it.
    storage_tries = math.exp(rate * from_storage_s)
    storage_down_s = math.expm1(rate * from_storage_s) / rate
    storage_detection_s = storage_tries * _within(rate, assumptions.detect_s) / rate

    kept_s = intervals.storage_s * _kept_checkpoints(assumptions, intervals)
    detection_s = memory_detection_s + storage_detection_s
    parts = {
        "productive": kept_s,
        "recomputed": max(work_and_stall_s - stall_s - kept_s, 0.0),
        "checkpoint": stall_s,
        "detection": detection_s,
        "restart": memory_down_s + storage_down_s - detection_s,
    }
    cycle_s = 1 / lost_rate + storage_down_s
    return Shares(**{name: part_s / cycle_s for name, part_s in parts.items()})


def expected_goodput(assumptions: Assumptions, intervals: Intervals) -> float:
    """Share of the wall time of a long run that is kept, on average."""
    lost_rate = assumptions.failure_rate * (1 - assumptions.memory_fraction)
    from_storage_s = assumptions.detect_s + assumptions.restart_s
    down_s = math.expm1(assumptions.failure_rate * from_storage_s) / assumptions.failure_rate
    kept_s = intervals.storage_s * _kept_checkpoints(assumptions, intervals)
    return kept_s / (1 / lost_rate + down_s)


def _kept_checkpoints(assumptions: Assumptions, intervals: Intervals) -> float:
    """Checkpoints that a life of the run adds, on average."""
    rate, survived = assumptions.failure_rate, assumptions.memory_fraction
    restart_s = assumptions.detect_s + assumptions.memory_restart_s
    period_s = intervals.memory_s + assumptions.blocked_s
    back = _restarted_before_loss(rate, survived, restart_s)
    log_period = intervals.snapshots * _log_finished(rate, survived * back, period_s)
    log_write = _log_finished(rate, survived * back, assumptions.write_s)
    return math.exp(log_period + log_write) / -math.expm1(log_period)


def _log_finished(rate: float, repeated: float, duration_s: float) -> float:
    """Log of the probability that what takes `duration_s` without failures ends in this life.

    `repeated`: probability that a failure lets it begin again in the same life. This is log phi(Ln).
    """
    return -rate * duration_s - math.log1p(-repeated * _within(rate, duration_s))


def _restarted_before_loss(rate: float, survived: float, restart_s: float) -> float:
    """Probability that a restart from memory ends before a failure takes memory away."""
    return math.exp(-rate * restart_s) / (1 - survived * _within(rate, restart_s))


def _within(rate: float, duration_s: float) -> float:
    """Probability of a failure within a time."""
    return -math.expm1(-rate * duration_s)


def _stall_s(rate: float, work_s: float, blocked_s: float) -> float:
    """Time blocked by saves until a failure, from the beginning of a period on, on average."""
    begun = math.exp(-rate * work_s) / _within(rate, work_s + blocked_s)
    return begun * _within(rate, blocked_s) / rate
