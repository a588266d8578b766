"""An attempt that ended itself over an anomaly: its events decide, whatever its logs say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.events import AnomalyEvent, EndEvent
from configs.files import append_json_line
from configs.rundir import AttemptDir
from tasks.diagnose.diagnose import diagnose_attempt
from tests.tasks.diagnose.torchrun_jobs import failed_record

_TRACEBACK = (
    "Traceback (most recent call last):\n  File 'loop.py', line 1\n"
    "configs.errors.AnomalyError: the loss rose at step 31\n"
    "NVRM: Xid (PCI:0000:ab:00): 94, pid=3, Contained ECC error\n"
)


def attempt_with(path: Path, *events: dict[str, Any]) -> AttemptDir:
    attempt = AttemptDir(path, 1)
    for rank in (0, 1):
        attempt.rank_log(rank).write_text(_TRACEBACK)
    append_json_line(attempt.events_path, EndEvent(time=1.0, step=1).model_dump())
    for values in events:
        event = AnomalyEvent.model_validate(
            {"time": 2.0, "step": 50, "onset_step": 31, "fatal": True, **values}
        )
        append_json_line(attempt.events_path, event.model_dump())
    return attempt


@pytest.mark.parametrize("kind", ["loss_spike", "nonfinite"])
def test_a_spike_wins_over_everything_in_the_logs(tmp_path: Path, kind: str) -> None:
    slow = {"kind": "straggler", "fatal": False, "rank": 1, "node": "b", "message": "slow"}
    attempt = attempt_with(tmp_path, slow, {"kind": kind, "message": "the loss rose at step 31"})
    verdict = diagnose_attempt(attempt, failed_record(nodes=["a", "b"]))
    assert (verdict.failure_class, verdict.category) == ("LossSpike", "anomaly")
    assert (verdict.action, verdict.method) == ("rollback_skip_data", "monitor")
    assert (verdict.faulty_rank, verdict.faulty_node) == (None, None)
    assert verdict.root_cause_text == "the loss rose at step 31"
    assert (verdict.root_cause_file, verdict.root_cause_line) == ("events.jsonl", 3)


def test_a_replica_that_differs_is_named_with_its_node(tmp_path: Path) -> None:
    found = {"kind": "replica_mismatch", "rank": 5, "node": "b", "message": "rank 5 on b differs"}
    verdict = diagnose_attempt(attempt_with(tmp_path, found), failed_record(nodes=["a", "b"]))
    assert (verdict.failure_class, verdict.action) == ("NodeFailure", "restart_exclude_node")
    assert (verdict.faulty_rank, verdict.faulty_node) == (5, "b")
    assert "memory" in verdict.mitigation


@pytest.mark.parametrize(("nodes", "node"), [(["a"], "a"), (["a", "b"], None)])
def test_replicas_without_a_majority_name_a_node_only_when_there_is_one(
    tmp_path: Path, nodes: list[str], node: str | None
) -> None:
    found = {"kind": "replica_mismatch", "message": "rank 0 on a and rank 1 on b differ"}
    verdict = diagnose_attempt(attempt_with(tmp_path, found), failed_record(nodes=nodes))
    assert (verdict.faulty_rank, verdict.faulty_node) == (None, node)
    assert "rank 0 on a and rank 1 on b" in verdict.root_cause_text


def test_anomalies_that_ended_nothing_leave_the_verdict_to_the_logs(tmp_path: Path) -> None:
    slow = {"kind": "straggler", "fatal": False, "rank": 1, "node": "b", "message": "slow"}
    attempt = attempt_with(tmp_path, slow)
    with attempt.events_path.open("a") as file:
        file.write('{"event": "anomaly", "kind": "loss_spi\n')  # torn by a crash
    assert diagnose_attempt(attempt, failed_record()).failure_class == "ECCError"


def test_an_attempt_that_completed_has_no_anomaly(tmp_path: Path) -> None:
    attempt = attempt_with(tmp_path, {"kind": "loss_spike", "message": "the loss rose"})
    record = failed_record(outcome="completed")
    assert diagnose_attempt(attempt, record).failure_class == "NoFailure"
