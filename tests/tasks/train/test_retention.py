"""The rules that say which checkpoints are kept, and why."""

from __future__ import annotations

import math

import pytest

from configs.schema import RunConfig
from tasks.train.retention import Facts, Rules, keep, rules_of

EVERY_TEN = range(10, 101, 10)


def kept(rules: Rules, facts: Facts, steps: range | list[int] = EVERY_TEN) -> list[int]:
    decision = keep(steps, rules, facts)
    assert sorted([*decision.kept, *decision.removed]) == sorted(steps)
    assert all(decision.kept.values())
    assert all(decision.removed.values())
    return list(decision.kept)


@pytest.mark.parametrize(
    ("rules", "steps"),
    [
        (Rules(last=1), [100]),
        (Rules(last=3), [80, 90, 100]),
        (Rules(last=30), list(EVERY_TEN)),
        (Rules(last=1, every_steps=40), [40, 80, 100]),
    ],
)
def test_newest_and_every_nth(rules: Rules, steps: list[int]) -> None:
    assert kept(rules, Facts(current_step=100)) == steps


def test_best_by_a_metric() -> None:
    scores = {10: 3.0, 20: 1.0, 30: 2.0, 40: 1.0, 50: math.nan, 100: 9.0}
    facts = Facts(current_step=100, scores=scores)
    assert kept(Rules(last=1, best=1), facts) == [40, 100]
    assert kept(Rules(last=1, best=3), facts) == [20, 30, 40, 100]
    assert kept(Rules(last=1, best=2, best_is_least=False), facts) == [10, 100]
    assert kept(Rules(last=1, best=2), Facts(current_step=100)) == [100]


@pytest.mark.parametrize(("onset", "healthy"), [(51, 50), (50, 40), (11, 10)])
def test_one_from_before_the_last_anomaly(onset: int, healthy: int) -> None:
    assert kept(Rules(last=1), Facts(current_step=100, anomaly_onset=onset)) == [healthy, 100]


def test_an_anomaly_before_all_checkpoints_keeps_none() -> None:
    assert kept(Rules(last=1), Facts(current_step=100, anomaly_onset=10)) == [100]


def test_one_that_is_older_than_a_spike_that_may_still_be_found() -> None:
    """With a patience of 15 steps, a spike found at step 101 can have begun at step 87."""
    assert kept(Rules(last=1, patience_steps=15), Facts(current_step=100)) == [80, 100]
    assert kept(Rules(last=1, patience_steps=20), Facts(current_step=100)) == [80, 100]
    assert kept(Rules(last=1, patience_steps=21), Facts(current_step=100)) == [70, 100]
    assert kept(Rules(last=3, patience_steps=15), Facts(current_step=100)) == [80, 90, 100]


def test_void_ones_go_and_count_for_no_rule() -> None:
    facts = Facts(current_step=100, void=frozenset({70, 90}), scores={90: 0.0, 10: 1.0})
    rules = Rules(last=2, every_steps=70, best=1, patience_steps=5)
    assert kept(rules, facts) == [10, 80, 100]
    decision = keep(EVERY_TEN, rules, facts)
    assert decision.removed[90] == "it was rolled back"
    assert decision.removed[60] == "no rule keeps it"


def test_what_is_ahead_of_training_is_left_to_be_replaced() -> None:
    """A damaged newest checkpoint was passed over: what is trained now must not go for it."""
    assert kept(Rules(last=1), Facts(current_step=60)) == [60, 70, 80, 90, 100]


def test_one_that_waits_for_its_evaluation_stays() -> None:
    facts = Facts(current_step=100, waiting=frozenset({30}))
    decision = keep(EVERY_TEN, Rules(last=1), facts)
    assert decision.kept == {30: ["waits for its evaluation"], 100: ["one of the newest 1"]}


def test_what_has_regressed_is_no_healthy_one() -> None:
    anomaly = Facts(current_step=100, anomaly_onset=51, unhealthy=frozenset({50, 40}))
    assert kept(Rules(last=1), anomaly) == [30, 100]
    spike = Facts(current_step=100, unhealthy=frozenset({80}))
    assert kept(Rules(last=1, patience_steps=15), spike) == [70, 100]
    all_of_them = Facts(current_step=100, anomaly_onset=51, unhealthy=frozenset(EVERY_TEN))
    assert kept(Rules(last=1), all_of_them) == [50, 100]


def test_the_newest_that_is_known_to_be_healthy_stays() -> None:
    """Newer ones are not evaluated yet, and may all turn out to have regressed."""
    facts = Facts(current_step=100, proven=frozenset({20, 30, 40}), unhealthy=frozenset({40, 90}))
    assert kept(Rules(last=1), facts) == [30, 100]
    assert kept(Rules(last=1), Facts(current_step=100, proven=frozenset({100}))) == [100]


def test_rules_of_a_config() -> None:
    assert rules_of(RunConfig()) is None
    config = RunConfig.model_validate(
        {
            "checkpoint": {
                "keep_last": 2,
                "keep_every_steps": 400,
                "keep_best": 1,
                "keep_best_metric": "mine/acc,none",
                "keep_best_mode": "max",
            }
        }
    )
    assert rules_of(config) == Rules(2, 400, 1, False, "mine/acc,none", 20)
    calm = config.model_copy(
        update={"anomalies": config.anomalies.model_copy(update={"enabled": False})}
    )
    assert (found := rules_of(calm)) is not None
    assert found.patience_steps == 0
