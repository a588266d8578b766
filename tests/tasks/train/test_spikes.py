"""What counts as a loss spike, on synthetic curves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest

from configs.schema import AnomalyConfig
from tasks.train.spikes import Spike, SpikeDetector

CONFIG = AnomalyConfig()
PATIENCE = CONFIG.spike_patience_steps
Curve = Callable[[int], float]


def first_spike(losses: Iterable[float], config: AnomalyConfig = CONFIG) -> Spike | None:
    detector = SpikeDetector(config)
    found = (detector.see(step, loss, 1.0) for step, loss in enumerate(losses, start=1))
    return next((spike for spike in found if spike), None)


def noisy(curve: Curve, steps: int, seed: int, noise: float) -> list[float]:
    rng = random.Random(seed)
    return [max(curve(step) + rng.gauss(0, noise), 1e-3) for step in range(1, steps + 1)]


CLEAN: dict[str, Curve] = {
    "flat": lambda step: 2.0,
    "converged to nothing": lambda step: 0.01,
    "steep": lambda step: 2.0 + 9.0 * math.exp(-step / 15),
    "falling for ever": lambda step: 11.0 - 0.01 * step,
    "steep, then flat": lambda step: max(11.0 - 0.3 * step, 2.0),
    "slow wave": lambda step: 3.0 + 0.1 * math.sin(step / 40),
    "slow rise": lambda step: 2.0 + 0.001 * step,
    "stairs down": lambda step: 5.0 - step // 100,
}


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.02, 0.3])
@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_curve_gives_no_alarm(name: str, noise: float) -> None:
    for seed in range(5):
        assert first_spike(noisy(CLEAN[name], 600, seed, noise)) is None


@pytest.mark.parametrize("noise", [1e-4, 0.02, 0.1])
@pytest.mark.parametrize("name", ["flat", "steep", "falling for ever", "slow wave"])
def test_a_loss_that_rises_and_stays_is_found_with_its_onset(name: str, noise: float) -> None:
    losses = noisy(CLEAN[name], 400, 3, noise)
    losses[200:] = [loss + 6.0 for loss in losses[200:]]
    spike = first_spike(losses)
    assert spike is not None and (spike.kind, spike.onset_step) == ("loss_spike", 201)
    assert f"by step {200 + PATIENCE}" in spike.message


def test_a_single_noisy_step_is_none_and_a_bump_that_recovers_is_none() -> None:
    losses = noisy(CLEAN["flat"], 400, 4, 0.02)
    losses[100] = 50.0
    losses[200 : 200 + PATIENCE - 1] = [9.0] * (PATIENCE - 1)
    losses[300:400:2] = [9.0] * 50  # every second step: each recovers at once
    assert first_spike(losses) is None


def test_a_step_that_only_comes_half_way_back_does_not_end_a_spike() -> None:
    """Floor of the scale: 0.02 at a loss of 2, so 2.16 is high and 2.08 recovered."""
    losses = [2.0] * 100 + [2.5, 2.5, 2.12] * 20
    spike = first_spike(losses)
    assert spike is not None and spike.onset_step == 101
    assert "by step 129" in spike.message  # the 20th high one
    assert first_spike([2.0] * 100 + [2.5, 2.5, 2.07] * 20) is None


def test_a_new_level_below_the_threshold_becomes_usual() -> None:
    losses = [2.0] * 100 + [2.5] + [2.12] * 200 + [2.2] * 30
    assert first_spike(losses) is None


@pytest.mark.parametrize("noise", [1e-4, 0.02])
def test_a_loss_that_creeps_away_is_found(noise: float) -> None:
    """Each window is hardly higher than the one before."""
    losses = noisy(lambda step: 2.0 + max(step - 100, 0) * 0.01, 300, 6, noise)
    spike = first_spike(losses)
    assert spike is not None and 100 < spike.onset_step < 130


def test_high_losses_do_not_become_usual() -> None:
    """With a window of 8, twenty high losses would fill it twice over."""
    config = AnomalyConfig(spike_window_steps=8)
    spike = first_spike([2.0] * 20 + [4.0] * PATIENCE, config)
    assert spike is not None and "usual before was 2.0000" in spike.message


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_found_at_once(bad: float) -> None:
    assert SpikeDetector(CONFIG).see(1, bad, 1.0) == Spike(
        "nonfinite",
        1,
        f"the loss of step 1 is no finite number: loss {bad:.4f}, gradient norm 1.0000",
    )
    spike = SpikeDetector(CONFIG).see(7, 2.0, bad)
    assert spike is not None and (spike.kind, spike.onset_step) == ("nonfinite", 7)
    assert spike.message.startswith("the gradient norm of step 7")


def test_a_resumed_detector_judges_as_one_that_saw_it_all() -> None:
    losses = noisy(CLEAN["steep"], 300, 5, 0.05)
    losses[200:] = [loss + 6.0 for loss in losses[200:]]
    resumed, cold = SpikeDetector(CONFIG), SpikeDetector(CONFIG)
    resumed.warm_up(losses[120:200])
    found = [resumed.see(step, losses[step - 1], 1.0) for step in range(201, 301)]
    whole = first_spike(losses)
    assert whole is not None and whole.onset_step == 201
    assert next(spike for spike in found if spike).onset_step == 201
    assert not any(cold.see(step, losses[step - 1], 1.0) for step in range(201, 301))


def test_a_warm_up_carries_no_half_of_a_spike_over() -> None:
    detector = SpikeDetector(CONFIG)
    detector.warm_up([2.0] * 64 + [9.0] * (PATIENCE - 1) + [math.nan])
    assert detector.see(1, 9.0, 1.0) is None
    assert detector.see(2, 2.0, 1.0) is None


@pytest.mark.parametrize("seed", range(10))
def test_it_is_deterministic_and_blind_to_the_unit(seed: int) -> None:
    """The same curve gives the same answers; one shifted by a constant and doubled, with the floor
    out of play, the same onset."""
    rng = random.Random(seed)
    losses = noisy(CLEAN["flat"], 300, seed, 0.5)
    onset = rng.randint(100, 250)
    losses[onset - 1 :] = [loss + 20.0 for loss in losses[onset - 1 :]]
    first, again = first_spike(losses), first_spike(losses)
    assert first == again and first is not None and first.onset_step == onset
    doubled = first_spike([2 * loss for loss in losses])
    assert doubled is not None and doubled.onset_step == onset
