from __future__ import annotations

from configs.events import CheckpointEvent, StartEvent, StepEvent
from configs.schema import CheckpointConfig, RecoveryConfig, RunConfig
from tasks.train.liveness import Liveness

CONFIG = RunConfig(
    checkpoint=CheckpointConfig(interval_steps=10, save_timeout_s=50),
    recovery=RecoveryConfig(hang_timeout_s=30, startup_timeout_s=300),
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


def test_starting_up_may_take_longer_than_a_step() -> None:
    liveness = Liveness(CONFIG, last_sign_of_life=0.0)
    assert not liveness.hung(299)
    assert liveness.hung(301)
    liveness.see(start(200), now=200)
    assert not liveness.hung(499)
    assert liveness.hung(501)


def test_after_the_first_step_silence_is_a_hang() -> None:
    liveness = Liveness(CONFIG, last_sign_of_life=0.0)
    liveness.see(step(1, 100), now=100)
    assert not liveness.hung(129)
    assert liveness.hung(131)


def test_a_save_that_is_due_has_its_own_limit_on_top() -> None:
    liveness = Liveness(CONFIG, last_sign_of_life=0.0)
    liveness.see(step(10, 100), now=100)
    assert not liveness.hung(179)
    assert liveness.hung(181)
    committed = CheckpointEvent(time=150, step=10, outcome="committed", duration_s=50, size_bytes=1)
    liveness.see(committed, now=150)
    assert not liveness.hung(179)
    assert liveness.hung(181)


def test_the_clock_of_the_job_does_not_matter() -> None:
    liveness = Liveness(CONFIG, last_sign_of_life=0.0)
    liveness.see(step(1, 1e9), now=10)
    assert not liveness.hung(39)
    assert liveness.hung(41)
