"""The parts of `overland chaos` that need no run: what is struck when, and what counts as equal."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from configs.errors import InputError
from configs.events import Event, StartEvent, StepEvent, ValidationEvent
from configs.rundir import COMMIT_MARKER_NAME, CheckpointDir
from flows.chaos.run import run_chaos, summarize
from flows.chaos.schedule import (
    SIGNALS,
    TARGETS,
    WHENS,
    Moment,
    Plan,
    Strike,
    Timeline,
    make_plans,
)
from flows.chaos.strike import Struck, stage_is_there
from flows.chaos.verdict import differences, outcome_of, restarts_of

STEPS, INTERVAL, RANKS = 50, 5, 2


def plans(seed: int, trials: int) -> list[Plan]:
    return make_plans(seed, trials, steps=STEPS, interval_steps=INTERVAL, ranks=RANKS)


# --- the schedule ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_thirty_trials_have_every_process_signal_and_kind_of_moment(seed: int) -> None:
    firsts = [plan.strikes[0] for plan in plans(seed, 30)]
    met = {(strike.target, strike.signal, strike.moment.when) for strike in firsts}
    assert met == set(product(TARGETS, SIGNALS, WHENS))


def test_eight_trials_have_every_process_with_every_signal() -> None:
    firsts = [plan.strikes[0] for plan in plans(7, 8)]
    assert {(s.target, s.signal) for s in firsts} == set(product(TARGETS, SIGNALS))
    assert {s.moment.when for s in firsts} == set(WHENS)


def test_all_follows_from_the_seed() -> None:
    assert plans(3, 30) == plans(3, 30)
    assert plans(3, 30) != plans(4, 30)


def test_some_trials_are_struck_twice() -> None:
    seconds = [plan.strikes[1] for plan in plans(1, 30) if len(plan.strikes) > 1]
    assert len(seconds) == 6
    assert {strike.moment.when for strike in seconds} == {"later"}


def test_moments_lie_within_the_run() -> None:
    for strike in (strike for plan in plans(2, 60) for strike in plan.strikes):
        moment = strike.moment
        if moment.when in ("save", "commit"):
            assert moment.step in range(INTERVAL, STEPS + 1, INTERVAL)
        else:
            assert 0 <= moment.fraction < 1
        assert 0 <= strike.rank < RANKS


def test_shares_of_the_time_are_steps_and_seconds_after_them() -> None:
    timeline = Timeline(startup_s=10.0, step_s=0.5, closing_s=5.0, steps=50)
    assert timeline.total_s == 40.0
    for fraction, step, after_s in (
        (0.0, 0, 0.0),
        (0.125, 0, 5.0),
        (0.255, 0, 10.2),  # within the first step
        (0.45, 16, 0.0),
        (0.95, 50, 3.0),
    ):
        found = timeline.place(fraction)
        assert found[0] == step
        assert found[1] == pytest.approx(after_s, abs=1e-9)


# --- the middle of a save -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "stages"),
    [
        ([], set()),
        (["SAVING.json"], {"save opened"}),
        (["SAVING.json", "part_00001.json"], {"save parts"}),
        (["SAVING.json", "part_00000.json", "part_00001.json"], {"commit parts"}),
        (
            ["SAVING.json", "part_00000.json", "part_00001.json", ".metadata"],
            {"commit index"},
        ),
        (
            ["SAVING.json", "part_00000.json", "part_00001.json", ".metadata", COMMIT_MARKER_NAME],
            set(),
        ),
    ],
)
def test_a_folder_tells_how_far_its_save_is(
    tmp_path: Path, files: list[str], stages: set[str]
) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    checkpoint = CheckpointDir(tmp_path, 5)
    moments = [
        Moment("save", step=5, stage="opened"),
        Moment("save", step=5, stage="parts"),
        Moment("commit", step=5, stage="parts"),
        Moment("commit", step=5, stage="index"),
    ]
    found = {
        f"{m.when} {m.stage}"
        for m in moments
        if stage_is_there(checkpoint, m, RANKS, is_strict=True)
    }
    assert found == stages
    is_open = bool(files) and COMMIT_MARKER_NAME not in files
    assert all(stage_is_there(checkpoint, m, RANKS, is_strict=False) is is_open for m in moments)


# --- verdicts -------------------------------------------------------------------------------------


def step(number: int, *, loss: float | None = None, time: float = 0.0) -> StepEvent:
    return StepEvent(
        time=time,
        step=number,
        loss=number / 10 if loss is None else loss,
        grad_norm=1.5,
        learning_rate=1e-3,
        step_time_s=0.1,
        tokens_per_s=1.0,
    )


def start(at_step: int, time: float, loaded_from: Any = "memory") -> StartEvent:
    return StartEvent(
        time=time,
        step=at_step,
        checkpoint=None,
        world_size=2,
        device="cpu",
        precision="fp32",
        num_parameters=1,
        padded_vocab_size=128,
        loaded_from=loaded_from,
    )


def validation(number: int, loss: float) -> ValidationEvent:
    return ValidationEvent(time=0.0, step=number, loss=loss, duration_s=0.1)


UNDISTURBED: list[Event] = [*(step(n) for n in range(1, 5)), validation(4, 0.5)]
REFERENCE = outcome_of(UNDISTURBED, "abc")


def test_steps_that_were_made_twice_alike_are_identical() -> None:
    assert differences(REFERENCE, [step(1), step(2), step(2), *UNDISTURBED[2:]], "abc") == []


@pytest.mark.parametrize(
    ("events", "digest", "problem"),
    [
        ([step(2, loss=0.2 + 2**-54), *UNDISTURBED], "abc", "step 2:"),
        (UNDISTURBED[1:], "abc", "steps [1] are missing"),
        (UNDISTURBED[:-1], "abc", "validations [4] are missing"),
        ([*UNDISTURBED[:-1], validation(4, 0.25)], "abc", "validation 4:"),
        ([*UNDISTURBED, step(5)], "abc", "step 5:"),
        (UNDISTURBED, "abd", "the last checkpoint is another"),
    ],
)
def test_any_difference_is_told(events: list[Event], digest: str, problem: str) -> None:
    found = differences(REFERENCE, events, digest)
    assert len(found) == 1
    assert found[0].startswith(problem)


def struck(target: Any, time: float, held_step: int) -> Struck:
    strike = Strike(target, "SIGKILL", 0, Moment("any"))
    return Struck(strike, time, 1, 1, held_step, held_step, 0, False)


def test_steps_that_were_held_and_are_made_again_are_lost() -> None:
    attempts: list[list[Event]] = [
        [start(0, 0.0), *(step(n, time=n) for n in range(1, 13))],
        [start(5, 20.0), step(6, time=21.0)],
    ]
    (restart,) = restarts_of(attempts, [struck("rank", 12.5, held_step=10)])
    assert (restart.held_step, restart.resumed_step, restart.lost_steps) == (10, 5, 5)
    assert restart.recomputed_steps == 7
    assert restart.restart_s == 8.5


def test_a_restart_counts_from_the_strike_that_ended_training() -> None:
    attempts: list[list[Event]] = [
        [start(0, 0.0), step(1, time=1.0)],
        [],  # struck before it had begun
        [start(1, 30.0, "storage"), step(2, time=31.0)],
    ]
    strikes = [struck("writer", 2.0, 0), struck("agent", 5.0, 1), struck("rank", 9.0, 1)]
    (restart,) = restarts_of(attempts, strikes)
    assert (restart.attempt, restart.restart_s, restart.lost_steps) == (3, 26.0, 0)


def test_a_restart_with_no_step_left_ends_with_its_start() -> None:
    attempts: list[list[Event]] = [[start(0, 0.0), step(1, time=1.0)], [start(1, 9.0)]]
    (restart,) = restarts_of(attempts, [struck("rank", 2.0, 1)])
    assert restart.restart_s == 7.0


def trial(**changes: Any) -> dict[str, Any]:
    strike = {"target": "rank", "signal": "SIGKILL", "when": "any", "is_hit": False}
    found = {"number": 1, "identical": True, "lost_steps": 0, "leftovers": []}
    return {**found, "restarts": [{"restart_s": 4.0}], "strikes": [strike], **changes}


def test_the_report_adds_up() -> None:
    report = summarize([trial(), trial(number=2, restarts=[{"restart_s": 8.0}])], seed=5)
    assert (report["trials"], report["identical"], report["lost_steps"]) == (2, 2, 0)
    assert report["restart_s"] == 6.0
    assert report["failed"] == []
    assert report["strikes"] == {"rank SIGKILL any": 2}


@pytest.mark.parametrize(
    "change",
    [{"identical": False}, {"lost_steps": 1}, {"leftovers": ["process 1"]}, {"strikes": []}],
)
def test_trials_fail_that_differ_lose_steps_leave_things_or_were_not_struck(
    change: dict[str, Any],
) -> None:
    assert summarize([trial(), trial(number=2, **change)], seed=0)["failed"] == [2]


def test_without_trials_nothing_is_started(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--runs must be at least 1, not 0"):
        run_chaos(trials=0, seed=0)
    with pytest.raises(InputError, match="--trial 4 is none of --runs 3"):
        run_chaos(trials=3, seed=0, only=4)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not empty"):
        run_chaos(trials=1, seed=0, folder=tmp_path)
    for impossible in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=f"--folder {impossible} cannot be made"):
            run_chaos(trials=1, seed=0, folder=impossible)
