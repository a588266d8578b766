from __future__ import annotations

import pytest

from configs.checkpoint_schema import CheckpointConfig
from configs.events import CheckpointEvent, EndEvent, StartEvent, StepEvent, ValidationEvent
from configs.schema import RecoveryConfig, RunConfig, TrainConfig
from tasks.train.liveness import Liveness

CONFIG = RunConfig(
    train=TrainConfig(steps=200, validation_interval_steps=50),
    checkpoint=CheckpointConfig(interval_steps=10, save_timeout_s=50, save_attempts=3),
    recovery=RecoveryConfig(
        hang_timeout_s=300, hang_factor=20, min_hang_timeout_s=30, startup_timeout_s=3000
    ),
)


def step(number: int, time: float) -> StepEvent:
    return StepEvent(
        time=time,
        step=number,
        loss=1.0,
        grad_norm=1.0,
        learning_rate=1e-3,
        step_time_s=1.0,
        tokens_per_s=1.0,
    )


def start(time: float) -> StartEvent:
    return StartEvent(
        time=time,
        step=0,
        checkpoint=None,
        world_size=2,
        device="cpu",
        precision="fp32",
        num_parameters=1,
        padded_vocab_size=128,
    )


def checkpoint(time: float, *, waited_s: float = 0.0) -> CheckpointEvent:
    return CheckpointEvent(
        time=time, step=10, outcome="committed", duration_s=1.0, waited_s=waited_s
    )


def after_steps(*, last: int, interval_s: float, count: int = 40) -> Liveness:
    """Silent since now=0, after regular steps up to `last`."""
    liveness = Liveness(CONFIG, last_sign_of_life=0.0)
    for number in range(last - count + 1, last + 1):
        liveness.see(step(number, 1e9 + number * interval_s), now=0.0)
    return liveness


def limit_of(liveness: Liveness) -> float:
    """The limit, as it is acted upon."""
    limit_s = liveness.limit_s
    since = liveness.last_sign_of_life
    assert not liveness.hung(since + limit_s - 1e-6)
    assert liveness.hung(since + limit_s + 1e-6)
    return limit_s


def test_starting_up_may_take_longer_than_a_step() -> None:
    liveness = Liveness(CONFIG, last_sign_of_life=0.0)
    assert limit_of(liveness) == 3000
    liveness.see(start(200), now=200)
    assert limit_of(liveness) == 3000
    assert liveness.last_sign_of_life == 200


def test_the_first_steps_have_the_full_limit() -> None:
    assert limit_of(after_steps(last=8, interval_s=3.0, count=8)) == 300
    assert limit_of(after_steps(last=9, interval_s=3.0, count=9)) == pytest.approx(60)


@pytest.mark.parametrize(("interval_s", "limit_s"), [(0.2, 30), (5.0, 100), (60.0, 300)])
def test_the_limit_is_learnt_within_its_bounds(interval_s: float, limit_s: float) -> None:
    assert limit_of(after_steps(last=42, interval_s=interval_s)) == pytest.approx(limit_s)


def test_one_slow_step_does_not_raise_the_limit_and_many_do() -> None:
    liveness = Liveness(CONFIG, last_sign_of_life=0.0)
    time = 0.0
    for number in range(51, 91):
        time += 9.0 if number == 60 else 3.0
        liveness.see(step(number, time), now=0.0)
    assert limit_of(liveness) == pytest.approx(60)
    for number in range(91, 99):
        time += 9.0
        liveness.see(step(number, time), now=0.0)
    assert limit_of(liveness) == pytest.approx(180)


def test_time_for_validation_is_no_step_time() -> None:
    liveness = after_steps(last=50, interval_s=3.0)
    assert limit_of(liveness) == 300
    liveness.see(ValidationEvent(time=2e9, step=50, loss=1.0, duration_s=100), now=100)
    assert limit_of(liveness) == pytest.approx(60)
    for number in range(51, 60):
        liveness.see(step(number, 2e9 + 500 + 3 * number), now=200)
    assert limit_of(liveness) == pytest.approx(60)


def test_the_last_step_waits_for_its_save() -> None:
    liveness = after_steps(last=200, interval_s=3.0)
    assert limit_of(liveness) == 300 + 3 * (3 * (50 + 50))
    liveness.see(checkpoint(0, waited_s=20.0), now=20)
    assert limit_of(liveness) == pytest.approx(60)
    assert liveness.last_sign_of_life == 20
    liveness.see(EndEvent(time=0, step=200), now=21)
    assert limit_of(liveness) == pytest.approx(60)


def test_ranks_that_say_that_they_wait_for_a_save_get_its_time() -> None:
    liveness = after_steps(last=42, interval_s=3.0)
    liveness.save_is_awaited = True
    assert limit_of(liveness) == 300 + 3 * (3 * (50 + 50))


def test_a_commit_in_the_background_is_no_sign_that_training_lives() -> None:
    liveness = after_steps(last=42, interval_s=3.0)
    liveness.see(checkpoint(0), now=40)
    assert liveness.last_sign_of_life == 0.0
    assert limit_of(liveness) == pytest.approx(60)


def test_a_clock_that_is_set_back_teaches_nothing() -> None:
    liveness = after_steps(last=42, interval_s=3.0)
    liveness.see(step(43, 0.0), now=0.0)
    assert limit_of(liveness) == pytest.approx(60)
