"""The account of wall time is exact, counts each step once, and leaves out when nobody was there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from configs.events import Event
from configs.records import Goodput
from tasks.recover.goodput import MAX_ABSENCE_S, compute_goodput
from tests.tasks.recover.run_histories import (
    action,
    add_attempt,
    background_save,
    end,
    run_dir,
    save,
    snapshot,
    start,
    step,
    validation,
)


def waiting_step(time: float, number: int, duration_s: float) -> Event:
    """A step whose optimizer waited, by its own account, even longer than the step took."""
    return step(time, number, duration_s, waited_s=duration_s * (1.5 if number % 2 else 0.2))


def _parts(goodput: Goodput) -> dict[str, float]:
    values = goodput.model_dump()
    return {k: v for k, v in values.items() if k.endswith("_s") and k != "wall_s"}


def test_nothing_done_yet_is_all_zero(tmp_path: Path) -> None:
    goodput = compute_goodput(run_dir(tmp_path))
    assert goodput.wall_s == 0.0
    assert goodput.goodput == 0.0


def test_a_failed_and_a_completed_attempt_are_cut_at_their_events(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    events: list[Event] = [
        start(108.0),
        step(112.0, 1, 2.0),
        step(114.0, 2, 2.0),
        save(115.0, 2, 1.0),
        step(117.0, 3, 2.0),
    ]
    add_attempt(run, 1, 100.0, 120.0, events, decided=action(wait_s=1.0, decided_at=120.5))
    events = [
        start(125.0, step=2),
        step(128.0, 3, 2.0),
        step(130.5, 4, 2.0),
        validation(131.5, 4, 1.0),
        save(133.5, 4, 2.0),
        end(133.5, 4),
    ]
    add_attempt(run, 2, 122.0, 134.0, events, outcome="completed")
    goodput = compute_goodput(run)
    assert _parts(goodput) == pytest.approx(
        {
            "productive_s": 8.0,
            "recomputed_s": 2.0,
            "checkpoint_s": 3.0,
            "validation_s": 1.0,
            "startup_s": 14.0,
            "detection_s": 3.0,
            "restart_s": 2.0,
            "other_s": 1.0,
        }
    )
    assert goodput.wall_s == pytest.approx(34.0)
    assert goodput.goodput == pytest.approx(8.0 / 34.0)


def test_an_attempt_that_never_reached_a_step_is_start_up_until_its_last_sign(
    tmp_path: Path,
) -> None:
    run = run_dir(tmp_path)
    add_attempt(run, 1, 100.0, 130.0, [start(110.0)], decided=action(stop=True))
    goodput = compute_goodput(run)
    assert (goodput.startup_s, goodput.detection_s, goodput.wall_s) == (10.0, 20.0, 30.0)


def test_an_attempt_without_events_is_all_start_up(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    add_attempt(run, 1, 100.0, 130.0, [])
    assert compute_goodput(run).startup_s == 30.0


def test_a_running_attempt_lasts_until_now(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    add_attempt(run, 1, 100.0, None, [start(101.0), step(104.0, 1, 3.0)], outcome=None)
    assert compute_goodput(run).wall_s == 4.0
    live = compute_goodput(run, now=106.0)
    assert (live.wall_s, live.productive_s, live.other_s) == (6.0, 3.0, 2.0)


def test_steps_beyond_the_start_of_a_later_attempt_are_void_at_once(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    events = [start(100.0), *(step(100.0 + n, n, 1.0, loss=n) for n in range(1, 6))]
    add_attempt(run, 1, 100.0, 105.0, events, decided=action(decided_at=105.0))
    add_attempt(run, 2, 105.0, None, [start(106.0, step=3)], outcome=None)
    goodput = compute_goodput(run)
    assert (goodput.productive_s, goodput.recomputed_s) == (3.0, 2.0)


@pytest.mark.parametrize(
    ("decided_after_s", "wait_s", "resumed_after_s", "restart_s"),
    [
        (2.0, 8.0, 11.0, 11.0),  # diagnosed, waited, resubmitted
        (2.0, 8.0, 86_400.0, 2.0),  # the flow was stopped while it waited
        (86_000.0, 8.0, 86_010.0, 10.0),  # the job ended while no flow ran
        (2.0, 600.0, 610.0, 610.0),  # a long wait is no absence
        (2.0, 0.0, 2.0 + MAX_ABSENCE_S, 2.0 + MAX_ABSENCE_S),
    ],
)
def test_time_between_attempts_counts_only_while_a_flow_is_at_work(
    tmp_path: Path,
    decided_after_s: float,
    wait_s: float,
    resumed_after_s: float,
    restart_s: float,
) -> None:
    run = run_dir(tmp_path)
    decided = action(wait_s=wait_s, decided_at=110.0 + decided_after_s)
    add_attempt(run, 1, 100.0, 110.0, [], decided=decided)
    add_attempt(run, 2, 110.0 + resumed_after_s, 120.0 + resumed_after_s, [])
    goodput = compute_goodput(run)
    assert goodput.restart_s == pytest.approx(restart_s)
    assert goodput.wall_s == pytest.approx(20.0 + restart_s)


@pytest.mark.parametrize("stopped", [True, False])
def test_time_after_a_stop_or_an_interruption_does_not_count(tmp_path: Path, stopped: bool) -> None:
    run = run_dir(tmp_path)
    decided = action(stop=True, decided_at=111.0) if stopped else None
    outcome = "failed" if stopped else "cancelled"
    add_attempt(run, 1, 100.0, 110.0, [], decided=decided, outcome=outcome)
    add_attempt(run, 2, 115.0, 125.0, [])
    assert (compute_goodput(run).restart_s, compute_goodput(run).wall_s) == (0.0, 20.0)


def test_a_wait_that_still_goes_on_counts_until_now(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    add_attempt(run, 1, 100.0, 110.0, [], decided=action(wait_s=60.0, decided_at=111.0))
    assert compute_goodput(run).restart_s == 0.0
    assert compute_goodput(run, now=130.0).restart_s == 20.0


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_always_add_up(tmp_path: Path, seed: int) -> None:
    """Whatever durations the events claim, overlapping or torn, no second is lost or doubled."""
    rng = random.Random(seed)
    run = run_dir(tmp_path)
    clock, ends = 1000.0, []
    for number in range(1, rng.randint(2, 6)):
        submitted = clock = clock + rng.uniform(0, 50)
        first = rng.randint(0, 10)
        events: list[Event] = [start(clock + rng.uniform(-5, 20), first)]
        for n in range(first + 1, first + rng.randint(1, 12)):
            clock += rng.uniform(0, 4)
            make = rng.choice(
                (step, step, waiting_step, save, background_save, snapshot, validation)
            )
            events.append(make(clock, n, rng.uniform(0, 6)))
        rng.shuffle(events)
        ended = max(clock + rng.uniform(-3, 5), submitted)
        add_attempt(run, number, submitted, ended, events, decided=action(decided_at=ended))
        last = max(e.time for e in events)
        clock = max(ended, last)
        ends.append(clock)
    goodput = compute_goodput(run)
    parts = _parts(goodput)
    assert all(seconds >= 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(goodput.wall_s)
    assert goodput.wall_s == pytest.approx(ends[-1] - run.attempts()[0].record().submitted_at)
    assert 0.0 <= goodput.goodput <= 1.0
