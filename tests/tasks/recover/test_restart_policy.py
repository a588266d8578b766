"""Decisions: budgets, back-off, progress, places, stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from configs.schema import RecoveryConfig
from tasks.recover.policy import MAX_WAIT_S, PastAttempt, attempt_history, decide
from tests.tasks.recover.run_histories import (
    action,
    add_attempt,
    add_checkpoint,
    run_dir,
    save,
    step,
    verdict,
)

CONFIG = RecoveryConfig(max_restarts=10, max_restarts_per_cause=3, backoff_s=2.0)
KILLED = verdict("NodeFailure", "restart_same_nodes", faulty_rank=1)
TIMED_OUT = verdict("NCCLTimeoutError", "restart_same_nodes")


def _past(number: int, found=KILLED, *, commits: tuple[int, ...] = (), **changes) -> PastAttempt:  # type: ignore[no-untyped-def]
    past = PastAttempt(number, found, action(), committed_steps=commits, nodes=("a",))
    return replace(past, **changes)


def _now(number: int, found=KILLED, **changes) -> PastAttempt:  # type: ignore[no-untyped-def]
    return _past(number, found, **{"action": None, **changes})


def test_the_first_failure_restarts_from_the_last_checkpoint() -> None:
    decided = decide([_now(1, commits=(50, 100))], CONFIG, now=7.0)
    assert (decided.kind, decided.stop, decided.wait_s) == ("restart_same_nodes", False, 2.0)
    assert decided.reason == "restart 1 of 10 from step 100: NodeFailure on rank 1"
    assert decided.decided_at == 7.0


def test_without_a_checkpoint_it_restarts_from_the_beginning() -> None:
    assert "from the beginning" in decide([_now(1)], CONFIG, now=0.0).reason


def test_the_wait_doubles_for_the_same_cause_and_is_capped() -> None:
    patient = RecoveryConfig(max_restarts=99, max_restarts_per_cause=99, backoff_s=2.0)
    waits = [
        decide([*map(_past, range(1, n)), _now(n)], patient, now=0.0).wait_s for n in range(1, 12)
    ]
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, MAX_WAIT_S, MAX_WAIT_S]


def test_a_cause_that_comes_back_without_progress_stops_the_run() -> None:
    history = [_past(1, commits=(50,)), _past(2), _past(3)]
    assert not decide([*history[:2], _now(3)], CONFIG, now=0.0).stop
    decided = decide([*history, _now(4)], CONFIG, now=0.0)
    assert decided.stop
    assert decided.reason == (
        "NodeFailure on rank 1 came back after 3 restarts without a new checkpoint"
    )


def test_a_new_checkpoint_in_between_clears_the_causes_count() -> None:
    history = [_past(1), _past(2), _past(3), _now(4, commits=(50,))]
    decided = decide(history, CONFIG, now=0.0)
    assert not decided.stop
    assert decided.wait_s == 2.0
    assert decided.reason.startswith("restart 4 of 10 from step 50")


def test_committing_an_old_step_again_is_no_progress() -> None:
    history = [_past(1, commits=(50,)), *(_past(n, commits=(50,)) for n in (2, 3))]
    assert decide([*history, _now(4, commits=(50,))], CONFIG, now=0.0).stop


def test_another_cause_has_its_own_count() -> None:
    history = [_past(1), _past(2), _past(3), _now(4, TIMED_OUT)]
    assert not decide(history, CONFIG, now=0.0).stop


def test_all_restarts_together_have_a_budget() -> None:
    config = RecoveryConfig(max_restarts=2)
    history = [_past(1, commits=(1,)), _past(2, commits=(2,)), _now(3, commits=(3,))]
    decided = decide(history, config, now=0.0)
    assert decided.stop
    assert decided.reason.startswith("all 2 restarts are used up (recovery.max_restarts); last: ")


@pytest.mark.parametrize("budget", ["max_restarts", "max_restarts_per_cause"])
def test_no_restart_is_allowed_when_the_budget_is_zero(budget: str) -> None:
    decided = decide([_now(1)], RecoveryConfig.model_validate({budget: 0}), now=0.0)
    assert decided.stop
    assert decided.reason == f"recovery.{budget} = 0 allows no restart: NodeFailure on rank 1"


def test_budgets_start_again_when_a_person_starts_a_stopped_run_again() -> None:
    stopped = _past(4, action=action(stop=True))
    history = [_past(1), _past(2), _past(3), stopped, _now(5)]
    decided = decide(history, CONFIG, now=0.0)
    assert not decided.stop
    assert decided.reason.startswith("restart 1 of 10")
    interrupted = _past(2, None, action=None)
    assert decide([_past(1), interrupted, _now(3)], CONFIG, now=0.0).wait_s == 2.0


def test_what_a_person_must_fix_stops_at_once_with_the_quoted_line() -> None:
    found = verdict(
        "KeyError", "fix_by_user", faulty_rank=1, root_cause_text="[rank1]: KeyError: 'lr'"
    )
    decided = decide([_now(1, found)], CONFIG, now=0.0)
    assert (decided.kind, decided.stop) == ("fix_by_user", True)
    assert decided.reason == "a restart does not cure KeyError on rank 1: KeyError: 'lr'"


def test_a_cancelled_job_is_not_started_again() -> None:
    decided = decide([_now(1, verdict("SlurmCancelled", "none"))], CONFIG, now=0.0)
    assert (decided.kind, decided.stop) == ("none", True)
    assert "on purpose" in decided.reason


def test_a_failed_job_whose_logs_show_no_failure_is_restarted_within_budgets() -> None:
    found = verdict("NoFailure", "none")
    decided = decide([_now(1, found)], CONFIG, now=0.0)
    assert (decided.kind, decided.stop) == ("restart_same_nodes", False)
    assert decide([*(_past(n, found) for n in (1, 2, 3)), _now(4, found)], CONFIG, now=0.0).stop


def test_a_completed_attempt_needs_nothing() -> None:
    decided = decide([_now(1, verdict("NoFailure", "none"), completed=True)], CONFIG, now=0.0)
    assert (decided.kind, decided.stop) == ("none", False)


def test_a_node_is_excluded_when_another_can_take_its_place() -> None:
    found = verdict("ECCError", "restart_exclude_node", faulty_node="a")
    decided = decide([_now(1, found)], CONFIG, now=0.0, pool=["a", "b"])
    assert (decided.kind, decided.exclude_nodes) == ("restart_exclude_node", ["a"])
    assert decided.reason.endswith("ECCError, without a")


@pytest.mark.parametrize("pool", [(), ("a",)])
def test_the_only_node_is_used_again_and_the_reason_says_so(pool: tuple[str, ...]) -> None:
    found = verdict("ECCError", "restart_exclude_node", faulty_node="a")
    decided = decide([_now(1, found)], CONFIG, now=0.0, pool=pool)
    assert (decided.kind, decided.exclude_nodes) == ("restart_same_nodes", [])
    assert "on a again: no other node is available" in decided.reason


def test_nodes_that_were_excluded_before_are_no_replacement() -> None:
    found = verdict("ECCError", "restart_exclude_node", faulty_node="b")
    gone = action().model_copy(update={"exclude_nodes": ["a"]})
    history = [_past(1, action=gone), _now(2, found, nodes=("b",))]
    assert decide(history, CONFIG, now=0.0, pool=["a", "b"]).kind == "restart_same_nodes"
    assert decide(history, CONFIG, now=0.0, pool=["a", "b", "c"]).exclude_nodes == ["b"]


def test_an_unknown_faulty_node_cannot_be_excluded() -> None:
    found = verdict("NetworkError", "restart_exclude_node")
    decided = decide([_now(1, found)], CONFIG, now=0.0, pool=["a", "b"])
    assert (decided.kind, decided.exclude_nodes) == ("restart_same_nodes", [])


@pytest.mark.parametrize("kind", ["resubmit_later", "rollback_skip_data"])
def test_other_restarts_pass_through(kind: str) -> None:
    found = verdict("Unknown", kind)  # type: ignore[arg-type]
    assert decide([_now(1, found)], CONFIG, now=0.0).kind == kind


def test_history_is_read_from_the_run_directory(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    events = [step(12.0, 50, 1.0), save(13.0, 50, 1.0), step(14.0, 51, 1.0)]
    add_attempt(run, 1, 10.0, 20.0, events, decided=action(), found=KILLED)
    add_attempt(run, 2, 22.0, 30.0, [], found=TIMED_OUT)
    add_attempt(run, 3, 31.0, None, [], outcome=None)
    add_checkpoint(run, 100, attempt=2)
    first, second = attempt_history(run)
    assert (first.number, first.committed_steps) == (1, (50,))
    assert first.verdict == KILLED
    assert first.restarted
    assert (second.committed_steps, second.verdict, second.action) == ((100,), TIMED_OUT, None)
    assert second.nodes == ("box",)
    assert decide([first, second], CONFIG, now=0.0).reason.startswith(
        "restart 2 of 10 from step 100: NCCLTimeoutError"
    )
