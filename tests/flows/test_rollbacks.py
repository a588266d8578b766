"""Whole runs through loss spikes: what data caused is skipped, what it did not cause ends the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.testing.utilities import prefect_test_harness

from configs.errors import RunFailedError
from configs.events import AnomalyEvent, FaultEvent, StartEvent, StepEvent
from configs.lineage import lineage_of
from configs.load import load_config
from configs.records import Action
from configs.rundir import AttemptDir, RunDir
from configs.schema import RunConfig
from flows.prepare import prepare
from flows.pretrain import pretrain
from tests.flows.helpers import tiny_config

pytestmark = pytest.mark.slow

BATCH = 8


@pytest.fixture(scope="module", autouse=True)
def harness() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


def config_of(folder: Path, *, train: dict[str, Any], **changes: Any) -> RunConfig:
    """A run that saves every ten steps, and takes four high losses for a spike."""
    config = tiny_config(
        folder,
        train={"steps": 70, "validation_interval_steps": 1000, **train},
        checkpoint={"interval_steps": 10, "memory": "on", "wait_for_commit": True},
        anomalies={"spike_window_steps": 16, "spike_patience_steps": 4},
        **changes,
    )
    return load_config(config)


def losses_of(attempt: AttemptDir) -> dict[int, float]:
    return {e.step: e.loss for e in attempt.events() if isinstance(e, StepEvent)}


def anomaly_of(attempt: AttemptDir) -> AnomalyEvent:
    (found,) = [e for e in attempt.events() if isinstance(e, AnomalyEvent) and e.fatal]
    return found


def start_of(attempt: AttemptDir) -> StartEvent:
    return next(e for e in attempt.events() if isinstance(e, StartEvent))


def action_of(attempt: AttemptDir) -> Action:
    action = attempt.action()
    assert action is not None
    return action


@pytest.mark.soak
def test_poisoned_data_is_skipped_and_the_run_completes(tmp_path: Path) -> None:
    """Steps 43 to 50 read noise: more than one rollback skips, and more than one checkpoint back."""
    fault = {"kind": "poison_data", "step": 43, "steps": 8}
    train = {"warmup_steps": 5, "learning_rate": 3e-3}
    config = config_of(tmp_path, train=train, faults=[fault])
    prepare(config)
    pretrain(config)
    run = RunDir(config.resolved_run_dir())
    first, second, third = run.attempts()

    assert (anomaly_of(first).onset_step, anomaly_of(first).step) == (43, 46)
    verdict, action = first.verdict(), action_of(first)
    assert verdict is not None and verdict.failure_class == "LossSpike"
    assert (action.kind, action.rollback_to_step) == ("rollback_skip_data", 40)
    assert action.skip_samples == [(40 * BATCH, 46 * BATCH)]

    assert start_of(second).step == 40
    assert (anomaly_of(second).onset_step, anomaly_of(second).step) == (41, 44)
    action = action_of(second)
    assert action.rollback_to_step == 30
    assert action.skip_samples == [(30 * BATCH, 50 * BATCH)]

    assert start_of(third).step == 30
    before, after = losses_of(first), losses_of(third)
    assert list(after) == list(range(31, 71))
    assert max(after.values()) < before[30] + 0.2
    assert after[70] < before[42] - 0.1
    assert before[43] > before[42] + 2
    for attempt, poisoned in ((first, True), (second, True), (third, False)):
        assert any(isinstance(e, FaultEvent) for e in attempt.events()) == poisoned
    marker = run.checkpoint(70).marker()
    assert marker is not None and marker.consumed_samples == (70 + 20) * BATCH
    assert "samples 240 to 400 of the data are skipped" in third.rank_log(0).read_text()


@pytest.mark.soak
def test_a_learning_rate_mistake_is_not_cured_and_ends_with_a_report(tmp_path: Path) -> None:
    train = {"warmup_steps": 60, "learning_rate": 4.0}
    recovery = {"max_rollbacks": 1, "backoff_s": 0.1}
    config = config_of(tmp_path, train=train, recovery=recovery)
    prepare(config)
    with pytest.raises(RunFailedError, match="skipping data did not cure the loss") as caught:
        pretrain(config)
    run = RunDir(config.resolved_run_dir())
    first, second = run.attempts()
    anomaly, action = anomaly_of(first), action_of(first)
    assert action.rollback_to_step is not None and not action.stop
    assert action.rollback_to_step < anomaly.onset_step
    assert start_of(second).step == action.rollback_to_step
    stop = action_of(second)
    assert (stop.kind, stop.stop, stop.skip_samples) == ("fix_by_user", True, [])
    told = str(caught.value)
    assert f"1 rollback is used up (from step {anomaly.step} to " in told
    assert "look at the learning rate, its warm-up and the model" in told
    assert lineage_of(run).skip_samples == action.skip_samples
    assert all(math.isfinite(loss) for loss in losses_of(second).values())
