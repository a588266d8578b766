"""Which rank is behind, by stacks as the agents leave them. (Of real jobs: tests/flows/test_hangs.py.)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from configs.records import AttemptRecord
from configs.rundir import AttemptDir, RunDir, write_record
from configs.stacks import Frame, RankStack
from tasks.diagnose.diagnose import diagnose_attempt

HUNG = AttemptRecord(
    number=1,
    key="k",
    job_id="j",
    submitted_at=0.0,
    ended_at=100.0,
    outcome="failed",
    reason="no sign of life for 60 s",
    hung=True,
    nodes=["n0", "n1"],
)
IN_ALL_REDUCE = [
    Frame(function="all_reduce", file="/x/site-packages/torch/distributed/c10d.py", line=1),
    Frame(function="step", file="/x/tasks/train/loop.py", line=2),
]
IN_SLEEP = [Frame(function="read_shard", file="/x/data.py", line=3)]


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return RunDir(tmp_path).attempt(1)


def leave(attempt: AttemptDir, rank: int, **fields: Any) -> None:
    """What the agent leaves of one of two ranks on two nodes."""
    usual: dict[str, Any] = {
        "request": "now",
        "rank": rank,
        "node": f"n{rank // 2}",
        "pid": 100 + rank,
        "state": "sleeping",
        "taken_at": 90.0,
        "since": 30.0,
        "step": 7,
        "phase": "forward_backward",
        "frames": IN_ALL_REDUCE,
    }
    write_record(attempt.stacks_dir / f"rank_{rank:05d}.json", RankStack(**usual | fields))
    (attempt.job_dir / "stacks.request").write_text("now")


def test_the_least_step_and_phase_is_behind(attempt: AttemptDir) -> None:
    leave(attempt, 0)
    leave(attempt, 1, phase="optimizer")
    leave(attempt, 2, phase="data", frames=IN_SLEEP)
    verdict = diagnose_attempt(attempt, HUNG)
    assert (verdict.failure_class, verdict.method) == ("Hang", "stacks")
    assert (verdict.faulty_rank, verdict.faulty_node) == (2, "n1")
    assert verdict.evidence == [
        "monitor: no sign of life for 60 s",
        "rank 2 is behind: in step 7, data for 60 s, while rank 1 is in step 7, optimizer for 60 s",
        "rank 2 (pid 102) in read_shard (/x/data.py:3)",
    ]
    assert verdict.root_cause_file == "job/stacks/rank_00002.json"


def test_a_step_behind_counts_more_than_a_phase(attempt: AttemptDir) -> None:
    leave(attempt, 0, step=8, phase="data")
    leave(attempt, 1, step=7, phase="report")
    assert diagnose_attempt(attempt, HUNG).faulty_rank == 1


def test_equally_far_the_one_outside_of_a_collective_is_behind(attempt: AttemptDir) -> None:
    leave(attempt, 0)
    leave(attempt, 1, frames=IN_SLEEP)
    leave(attempt, 2)
    verdict = diagnose_attempt(attempt, HUNG)
    assert (verdict.faulty_rank, verdict.faulty_node) == (1, "n0")
    assert "all 3 ranks are in step 7, forward_backward for 60 s" in verdict.evidence
    assert "rank 1 is in no collective operation, while the others are" in verdict.evidence


def test_waiting_for_an_operation_is_a_collective_too(attempt: AttemptDir, tmp_path: Path) -> None:
    """A method in native code has no frame of its own."""
    (tmp_path / "loop.py").write_text("work.wait()\n")
    waits = [Frame(function="reduced", file=str(tmp_path / "loop.py"), line=1)]
    leave(attempt, 0, frames=waits)
    leave(attempt, 1, frames=IN_SLEEP)
    assert diagnose_attempt(attempt, HUNG).faulty_rank == 1


def test_without_records_of_progress_the_stacks_decide(attempt: AttemptDir) -> None:
    leave(attempt, 0, step=None, phase="")
    leave(attempt, 1, step=None, phase="", frames=IN_SLEEP)
    assert diagnose_attempt(attempt, HUNG).faulty_rank == 1


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("stopped", "rank 1 is stopped: it got SIGSTOP, or a debugger holds it"),
        ("zombie", "rank 1 has ended"),
    ],
)
def test_a_process_that_does_nothing_is_behind_whatever_it_did(
    attempt: AttemptDir, state: str, text: str
) -> None:
    leave(attempt, 0, phase="data")
    leave(attempt, 1, state=state, phase="optimizer")
    verdict = diagnose_attempt(attempt, HUNG)
    assert verdict.faulty_rank == 1
    assert text in verdict.evidence


def test_a_rank_without_an_answer_is_behind(attempt: AttemptDir) -> None:
    leave(attempt, 0)
    leave(attempt, 1, request="earlier")
    leave(attempt, 2)
    verdict = diagnose_attempt(attempt, HUNG)
    assert (verdict.faulty_rank, verdict.faulty_node) == (1, None)
    assert any(line.startswith("rank 1 gave no answer") for line in verdict.evidence)


def test_torchs_own_record_decides_last(attempt: AttemptDir) -> None:
    for rank, begun in ((0, 9), (1, 8), (2, 9)):
        leave(attempt, rank)
        entry = {"process_group": ["0", "default_pg"], "is_p2p": False, "collective_seq_id": begun}
        path = attempt.stacks_dir / f"collectives_rank_{rank:05d}.json"
        path.write_text(json.dumps({"gloo": {"entries": [entry]}}))
    verdict = diagnose_attempt(attempt, HUNG)
    assert verdict.faulty_rank == 1
    assert "rank 1 has begun 8 operations of group 0 default_pg, others 9" in verdict.evidence


def test_nobody_is_blamed_without_a_reason(attempt: AttemptDir) -> None:
    leave(attempt, 0)
    leave(attempt, 2)
    leave(attempt, 1)
    verdict = diagnose_attempt(attempt, HUNG)
    assert (verdict.failure_class, verdict.faulty_rank, verdict.faulty_node) == ("Hang", None, None)


def test_without_stacks_the_logs_are_read(attempt: AttemptDir) -> None:
    verdict = diagnose_attempt(attempt, HUNG)
    assert (verdict.failure_class, verdict.method) == ("Hang", "monitor")
