"""Real torchrun jobs that go wrong without failing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from training_jobs import JobResult, run_training_job

from configs.events import AnomalyEvent, StepEvent
from configs.rundir import RunDir
from tasks.diagnose.diagnose import diagnose_attempt
from tests.tasks.diagnose.torchrun_jobs import failed_record

pytestmark = pytest.mark.slow

NewRun = Callable[[], RunDir]
NODE = os.uname().nodename
THREE_RANKS: dict[str, Any] = {"parallel": {"data": 3}}


def train_of(**changes: Any) -> dict[str, Any]:
    return {"steps": 12, "global_batch_size": 12, **changes}


def anomalies_of(job: JobResult) -> list[AnomalyEvent]:
    return [event for event in job.attempt.events() if isinstance(event, AnomalyEvent)]


def test_a_slow_rank_is_named_once_and_training_goes_on(new_run: NewRun) -> None:
    sections = {
        **THREE_RANKS,
        "train": train_of(),
        "checkpoint": {"interval_steps": 100},
        "anomalies": {"straggler_interval_steps": 4},
        "faults": [{"kind": "slow", "step": 1, "steps": 12, "delay_s": 0.5, "rank": 2}],
    }
    job = run_training_job(new_run(), 1, sections)
    assert job.exit_code == 0, job.explain()
    named = [event for event in anomalies_of(job) if event.rank == 2]
    assert [event.node for event in named] == [NODE]
    # On a busy machine all ranks may be slow at first.
    assert (named[0].step, named[0].onset_step) in [(4, 1), (8, 5), (12, 9)]
    assert (named[0].kind, named[0].fatal) == ("straggler", False)
    assert f"straggler at step {named[0].step}: rank 2 on {NODE} computes " in job.log(0)


def test_one_replica_of_three_that_differs_is_named_and_nothing_of_it_saved(
    new_run: NewRun,
) -> None:
    run = new_run()
    sections = {
        **THREE_RANKS,
        "train": train_of(),
        "checkpoint": {"interval_steps": 3},
        "anomalies": {"replica_check_interval_steps": 100},
        "faults": [{"kind": "corrupt_weights", "step": 5, "rank": 1}],
    }
    job = run_training_job(run, 1, sections)
    assert job.exit_code == 1, job.explain()
    (found,) = anomalies_of(job)
    assert (found.kind, found.fatal, found.rank, found.node) == ("replica_mismatch", True, 1, NODE)
    assert (found.onset_step, found.step) == (4, 6)
    assert [checkpoint.step for checkpoint in run.committed_checkpoints()] == [3]
    for rank in range(3):
        assert f"AnomalyError: the weights of rank 1 on {NODE} differ" in job.log(rank)
    verdict = diagnose_attempt(job.attempt, failed_record(nodes=[NODE, "other"]))
    assert (verdict.failure_class, verdict.faulty_rank) == ("NodeFailure", 1)
    assert (verdict.faulty_node, verdict.action) == (NODE, "restart_exclude_node")


@pytest.mark.soak
def test_of_two_replicas_that_differ_both_are_named(new_run: NewRun) -> None:
    """Tensor-parallel ranks 0 and 1 each have a replica of their own: 2 and 3."""
    sections = {
        "parallel": {"tensor": 2, "data": 2},
        "checkpoint": {"interval_steps": 2, "wait_for_commit": False},
        "anomalies": {"replica_check_interval_steps": 3},
        "faults": [{"kind": "corrupt_weights", "step": 3, "rank": 3}],
    }
    run = new_run()
    job = run_training_job(run, 1, sections)
    assert job.exit_code == 1, job.explain()
    # Its save was still under way: what the next attempt goes back to.
    assert [checkpoint.step for checkpoint in run.committed_checkpoints()] == [2]
    (found,) = anomalies_of(job)
    assert (found.rank, found.onset_step, found.step) == (None, 3, 3)
    assert f"rank 1 on {NODE} and rank 3 on {NODE} differ" in found.message
    assert "AnomalyError" in job.log(0)


def test_a_loss_that_is_no_number_ends_the_job_at_once(new_run: NewRun) -> None:
    train = {"learning_rate": 1e30, "min_learning_rate": 0, "warmup_steps": 0}
    job = run_training_job(new_run(), 1, {"train": train})
    assert job.exit_code == 1, job.explain()
    (found,) = anomalies_of(job)
    steps = [event.step for event in job.attempt.events() if isinstance(event, StepEvent)]
    assert (found.kind, found.fatal) == ("nonfinite", True)
    assert found.onset_step == found.step == steps[-1]
    assert "AnomalyError" in job.log(0) and "AnomalyError" in job.log(1)
    verdict = diagnose_attempt(job.attempt, failed_record())
    assert (verdict.failure_class, verdict.action) == ("LossSpike", "rollback_skip_data")


@pytest.mark.soak
def test_nothing_is_watched_when_it_is_switched_off(new_run: NewRun) -> None:
    sections = {
        "anomalies": {"enabled": False, "replica_check_interval_steps": 2},
        "faults": [{"kind": "corrupt_weights", "step": 2, "rank": 1}],
    }
    job = run_training_job(new_run(), 1, sections)
    assert job.exit_code == 0, job.explain()
    assert anomalies_of(job) == []
