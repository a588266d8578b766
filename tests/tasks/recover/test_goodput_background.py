"""Saves in the background: what they cost training counts once, and nothing else is cut by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.events import Event, FaultEvent
from configs.records import Goodput
from tasks.recover.goodput import compute_goodput
from tests.tasks.recover.run_histories import (
    action,
    add_attempt,
    anomaly,
    background_save,
    end,
    run_dir,
    save,
    snapshot,
    start,
    step,
    validation,
)

Account = dict[str, float]


def account(
    path: Path, events: list[Event], ended_at: float | None, outcome: str | None
) -> Account:
    """Parts of one attempt that was submitted at 100 s, without those that are zero."""
    run = run_dir(path)
    add_attempt(run, 1, 100.0, ended_at, events, outcome=outcome)
    goodput: Goodput = compute_goodput(run)
    values = goodput.model_dump()
    parts = {k: v for k, v in values.items() if k.endswith("_s") and k != "wall_s" and v}
    last = max([ended_at or 100.0, *(event.time for event in events)])
    assert goodput.wall_s == pytest.approx(last - 100.0)
    assert sum(parts.values()) == pytest.approx(goodput.wall_s)
    return parts


def test_time_blocked_at_a_snapshot_and_at_the_optimizer_is_the_checkpoint_s(
    tmp_path: Path,
) -> None:
    events = [
        start(101.0),
        step(104.0, 1, 2.0),
        snapshot(104.5, 1, 0.5),
        step(107.0, 2, 2.5, waited_s=0.5),
        step(109.0, 3, 2.0),
    ]
    assert account(tmp_path, events, None, None) == pytest.approx(
        {"startup_s": 2.0, "productive_s": 6.0, "checkpoint_s": 1.0}
    )


@pytest.mark.parametrize("committed_at", [102.5, 104.0, 105.0, 106.0, 106.5, 108.9, 109.5])
def test_a_commit_in_the_background_changes_nothing_wherever_it_comes(
    tmp_path: Path, committed_at: float
) -> None:
    events = [
        start(101.0),
        step(104.0, 1, 2.0),
        snapshot(104.25, 1, 0.25),
        step(106.25, 2, 2.0),
        validation(107.0, 2, 0.5),
        step(109.0, 3, 2.0),
        end(110.0, 3),
        background_save(committed_at, 1, 60.0),
    ]
    assert account(tmp_path, events, 110.0, "completed") == pytest.approx(
        {
            "startup_s": 2.0,
            "productive_s": 6.0,
            "checkpoint_s": 0.25,
            "validation_s": 0.5,
            "other_s": 1.25,
        }
    )


def test_the_last_save_is_waited_for_and_an_earlier_one_may_end_meanwhile(tmp_path: Path) -> None:
    events = [
        start(101.0),
        step(103.0, 1, 2.0),
        step(105.0, 2, 2.0),
        background_save(107.0, 1, 4.0),
        save(112.0, 2, 7.0),
        end(112.0, 2),
    ]
    assert account(tmp_path, events, 113.0, "completed") == pytest.approx(
        {"startup_s": 1.0, "productive_s": 4.0, "checkpoint_s": 7.0, "other_s": 1.0}
    )


def test_a_commit_after_training_went_silent_is_no_sign_of_life(tmp_path: Path) -> None:
    events = [start(101.0), step(103.0, 1, 2.0), background_save(140.0, 1, 37.0)]
    assert account(tmp_path, events, 163.0, "failed") == pytest.approx(
        {"startup_s": 1.0, "productive_s": 2.0, "detection_s": 60.0}
    )


@pytest.mark.parametrize("fatal", [True, False])
def test_an_anomaly_takes_no_time_and_is_a_sign_of_life(tmp_path: Path, fatal: bool) -> None:
    events = [start(101.0), step(103.0, 1, 2.0), anomaly(105.0, 2, fatal=fatal)]
    assert account(tmp_path, events, 112.0, "failed") == pytest.approx(
        {"startup_s": 1.0, "productive_s": 2.0, "other_s": 2.0, "detection_s": 7.0}
    )


def test_an_anomaly_or_a_fault_in_the_middle_of_a_step_does_not_cut_it(tmp_path: Path) -> None:
    fault = FaultEvent(time=102.0, step=1, rank=1, kind="slow")
    events = [start(101.0), fault, anomaly(103.0, 1, fatal=False), step(105.0, 1, 4.0)]
    assert account(tmp_path, events, 105.0, "completed") == pytest.approx(
        {"startup_s": 1.0, "productive_s": 4.0}
    )


@pytest.mark.parametrize("outcome", ["stopped", "failed", "cancelled"])
def test_after_a_job_has_ended_by_itself_nothing_has_to_be_detected(
    tmp_path: Path, outcome: str
) -> None:
    events = [
        start(101.0),
        step(103.0, 1, 2.0),
        save(106.0, 1, 3.0),
        end(106.0, 1, stopped=True),
    ]
    assert account(tmp_path, events, 110.0, outcome) == pytest.approx(
        {"startup_s": 1.0, "productive_s": 2.0, "checkpoint_s": 3.0, "other_s": 4.0}
    )


def test_the_time_a_recomputed_step_waited_stays_the_checkpoint_s(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    first = [start(100.0), step(104.0, 1, 4.0, waited_s=1.0), step(107.0, 2, 3.0)]
    add_attempt(run, 1, 100.0, 107.0, first, decided=action(decided_at=107.0))
    second = [start(107.0), step(110.0, 1, 3.0), step(113.0, 2, 3.0)]
    add_attempt(run, 2, 107.0, 113.0, second, outcome="completed")
    goodput = compute_goodput(run)
    assert (goodput.productive_s, goodput.recomputed_s) == (6.0, 6.0)
    assert (goodput.checkpoint_s, goodput.wall_s) == (1.0, 13.0)
