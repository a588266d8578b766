"""Simulated runs are accounted to the second; faults of a trace take nodes away and bring them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import InputError
from configs.goodput import Assumptions, Intervals
from tasks.recover.fault_trace import DAY_S, FaultTrace, Outage, draw_cluster, read_fault_trace
from tasks.recover.goodput_plan import plan_goodput
from tasks.recover.goodput_run import Seconds, SimulatedRun
from tasks.recover.goodput_trace import simulate_trace
from tests.tasks.recover.goodput_cases import assume

REAL_TRACE = (
    Path(__file__).parents[3].parent / "shared" / "traces" / "infinitehbd" / "fault_trace.json"
)


def small(**changes: object) -> Assumptions:
    """Two nodes; a write takes 20 s, a save costs 10 s, a failure 5 + 30 s (from memory 5 + 10 s)."""
    values = {
        "gpus": 16,
        "state_size_bytes": 20e9,
        "write_bandwidth_bytes_per_s": 1e9,
        "blocked_s": 10.0,
        "detect_s": 5.0,
        "restart_s": 30.0,
        "memory_restart_s": 10.0,
    }
    return assume(**{**values, **changes})


EVERY_100_S = Intervals(storage_s=90.0, memory_s=90.0)
EVERY_SECOND_TO_STORAGE = Intervals(storage_s=180.0, memory_s=90.0)


def test_a_failure_throws_away_what_is_not_written_yet() -> None:
    run = SimulatedRun(small(), EVERY_100_S)
    run.fail(215.0, memory_survives=False)  # the second save ended at 200 s, its write at 220 s
    assert run.ready_at == 250.0
    account = run.finish(300.0)
    assert account == Seconds(
        worked=2 * 90.0 + 15.0 + 50.0,
        recomputed=90.0 + 15.0,
        checkpoint=20.0,
        detection=5.0,
        restart=30.0,
    )
    assert (account.wall, account.kept) == (300.0, 90.0 + 50.0)


def test_a_checkpoint_counts_once_its_write_has_ended() -> None:
    run = SimulatedRun(small(), EVERY_100_S)
    run.fail(220.0, memory_survives=False)
    assert run.finish(255.0).kept == 180.0


def test_a_failure_during_the_restart_begins_it_anew() -> None:
    run = SimulatedRun(small(), EVERY_100_S)
    run.fail(95.0, memory_survives=False)  # blocked by the first save
    run.fail(110.0, memory_survives=False)
    assert run.ready_at == 145.0
    account = run.finish(145.0)
    assert account == Seconds(
        worked=90.0, recomputed=90.0, checkpoint=5.0, detection=10.0, restart=40.0
    )
    assert (run.failures, run.failures_while_down) == (2, 1)


def test_a_crash_comes_back_from_memory_and_writes_again_what_was_cut_off() -> None:
    run = SimulatedRun(small(), EVERY_SECOND_TO_STORAGE)
    run.fail(210.0, memory_survives=True)  # ten seconds into the write of the first checkpoint
    assert run.ready_at == 225.0
    run.fail(244.0, memory_survives=False)  # a second before that write has ended
    assert run.finish(279.0).kept == 0.0

    run = SimulatedRun(small(), EVERY_SECOND_TO_STORAGE)
    run.fail(210.0, memory_survives=True)
    run.fail(245.0, memory_survives=False)
    assert run.finish(280.0).kept == 180.0


def test_a_node_lost_during_a_restart_from_memory_takes_memory_with_it() -> None:
    run = SimulatedRun(small(), EVERY_SECOND_TO_STORAGE)
    run.fail(110.0, memory_survives=True)
    run.fail(120.0, memory_survives=False)
    assert not run.from_memory
    account = run.finish(155.0)
    assert (account.kept, account.recomputed, account.wall) == (0.0, 100.0, 155.0)


def traced(outages: list[Outage], *, spare_nodes: int, days: float = 0.02) -> Any:
    """A run on a cluster that is the whole trace (so that every node is drawn)."""
    trace = FaultTrace(tuple(sorted(outages)), nodes=2 + spare_nodes, span_s=days * DAY_S)
    return simulate_trace(
        small(), EVERY_100_S, trace, Path("t"), spare_nodes=spare_nodes, draws=4, seed=0
    )


def test_without_a_spare_the_job_waits_until_the_node_is_back() -> None:
    outage = Outage(500.0, 700.0, node=0)
    waiting = traced([outage], spare_nodes=0)
    wall_s = waiting.days * DAY_S
    # At worst the random turn of the trace puts the outage over its end.
    assert waiting.shares.waiting * wall_s == pytest.approx(195.0, rel=0.5)
    assert sum(waiting.shares.model_dump().values()) == pytest.approx(1.0)
    crowd = [Outage(500.0, 700.0, node=node) for node in range(4)]
    assert traced(crowd, spare_nodes=2).shares.waiting > 0
    assert traced(crowd[:1], spare_nodes=2).shares.waiting == 0


def test_faults_of_spare_nodes_do_not_stop_the_job() -> None:
    everything = [Outage(100.0 * n, 100.0 * n, node=n) for n in range(10)]
    result = traced(everything, spare_nodes=8)
    assert 0 < result.failures_per_day * result.days < 10


def test_outages_that_overlap_on_a_node_are_one() -> None:
    once = traced([Outage(100.0, 400.0, 0)], spare_nodes=0)
    twice = traced([Outage(100.0, 300.0, 0), Outage(200.0, 400.0, 0)], spare_nodes=0)
    assert twice.shares == once.shares


def event(node: str, day: float, kind: str, what: str = "GPU") -> dict[str, Any]:
    return {"node_id": node, "event_time": day, "event_type": kind, "fault_type": {"Class": what}}


def test_a_trace_pairs_starts_and_ends_by_node_and_fault(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [
        event("a", 1.0, "fault_start"),
        event("a", 2.0, "fault_start", "NIC"),
        event("b", 3.0, "fault_start"),
        event("a", 4.0, "fault_end", "NIC"),
        event("a", 6.0, "fault_end"),
        event("c", 10.0, "fault_start"),
    ]
    path.write_text(json.dumps(events))
    trace = read_fault_trace(path, nodes=4)
    days = [(o.start_s / DAY_S, o.end_s / DAY_S, o.node) for o in trace.outages]
    assert days == [(1.0, 6.0, 0), (2.0, 4.0, 0), (3.0, 10.0, 1), (10.0, 10.0, 2)]
    assert trace.node_mtbf_s == 4 * 10 * DAY_S / 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "holds no fault"),
        ("{", "no fault trace"),
        ('[{"node_id": "a"}]', "event_time"),
        ("[1]", "no fault trace"),
        (json.dumps([event("a", 1.0, "boom")]), "boom"),
        (json.dumps([event(n, 1.0, "fault_start") for n in "abc"]), "3 nodes failed"),
        (json.dumps([event("a", float("nan"), "fault_start")]), "event_time nan"),
        (json.dumps([event("a", -1.0, "fault_start")]), "event_time -1"),
        (json.dumps([event("a", 10**400, "fault_start")]), "no fault trace"),
        (json.dumps([event("a", 0.0, "fault_start")]), "has no length"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_fault_trace(path, nodes=2)


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_fault_trace(tmp_path / "none.json")


def test_a_drawn_cluster_keeps_the_rate_and_the_bursts() -> None:
    burst = [Outage(1000.0, 1000.0 + node, node) for node in range(10)]
    trace = FaultTrace(tuple(burst), nodes=10, span_s=1e6)
    drawn = draw_cluster(trace, 25, np.random.default_rng(0))
    assert len({outage.node for outage in drawn}) == 25
    groups = {outage.start_s for outage in drawn}
    assert len(groups) == 3, "two whole groups and a half one, each at a moment of its own"
    assert sorted(sum(o.start_s == at for o in drawn) for at in groups) == [5, 10, 10]


@pytest.mark.skipif(not REAL_TRACE.is_file(), reason="the InfiniteHBD trace is not at ../shared")
@pytest.mark.parametrize("gpus", [1000, 10_000])
def test_the_model_holds_under_the_real_trace(gpus: int) -> None:
    trace = read_fault_trace(REAL_TRACE)
    assert (len(trace.outages), trace.nodes) == (584, 400)
    assert trace.node_mtbf_s / DAY_S == pytest.approx(239, abs=0.5)
    assumptions = assume(gpus=gpus, node_mtbf_s=trace.node_mtbf_s)
    plan = plan_goodput(assumptions, trace_path=REAL_TRACE)
    assert plan.trace is not None
    assert sum(plan.trace.shares.model_dump().values()) == pytest.approx(1.0)
    # Apart from waiting for nodes, which the model does not know.
    at_work = plan.trace.goodput / (1 - plan.trace.shares.waiting)
    assert at_work == pytest.approx(plan.trace.model_goodput, abs=0.01)
    assert plan.trace.best_goodput - plan.trace.goodput < 0.002
    assert any("Real faults" in note for note in plan.notes)
