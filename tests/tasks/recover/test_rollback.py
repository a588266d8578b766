"""Rollbacks: how far back, without which data, how often; and what is void after corruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.events import AnomalyEvent, StartEvent
from configs.lineage import lineage_of, valid_checkpoints
from configs.records import Action, Verdict
from configs.regressions import RegressionReport
from configs.rundir import COMMIT_MARKER_NAME, RunDir, write_record
from configs.samples import SampleStream
from configs.schema import RecoveryConfig, TrainConfig
from tasks.recover.policy import PastAttempt, attempt_history, decide
from tasks.recover.rollback import Ground, SavedState, ground_of
from tests.tasks.recover.run_histories import (
    add_attempt,
    add_checkpoint,
    run_dir,
    start,
    step,
    verdict,
)

CONFIG = RecoveryConfig(max_rollbacks=3)
SPIKE = verdict("LossSpike", "rollback_skip_data", method="monitor")
TRAIN = TrainConfig(steps=1000, global_batch_size=4)


def anomaly(onset: int, found: int, **changes: Any) -> AnomalyEvent:
    values = {"time": 1.0, "kind": "loss_spike", "fatal": True, "message": "the loss rose"}
    return AnomalyEvent.model_validate({"step": found, "onset_step": onset, **values, **changes})


def ground(*steps: int, spans: tuple[tuple[int, int], ...] = ()) -> Ground:
    """Checkpoints of a run that skipped `spans` from the beginning on."""
    stream = SampleStream.of(TRAIN, spans)
    return Ground(tuple(SavedState(s, stream.after(0, batches=s)) for s in steps), stream)


def struck(number: int, onset: int, found: int, action: Action | None = None) -> PastAttempt:
    return PastAttempt(number, SPIKE, action, anomaly=anomaly(onset, found), nodes=("a",))


def decided_on(
    *spikes: tuple[int, int], on: Ground, config: RecoveryConfig = CONFIG
) -> list[Action]:
    """The actions on one spike (onset, found) after the other, each decided with those before."""
    history: list[PastAttempt] = []
    for number, (onset, found) in enumerate(spikes, start=1):
        history.append(struck(number, onset, found))
        action = decide(history, config, now=5.0, ground=on)
        history[-1] = replace(history[-1], action=action)
    return [attempt.action for attempt in history if attempt.action]


def test_the_first_rollback_goes_to_the_newest_checkpoint_before_the_spike() -> None:
    (action,) = decided_on((101, 120), on=ground(60, 80, 100, 110))
    assert (action.kind, action.stop, action.wait_s) == ("rollback_skip_data", False, 0.0)
    assert action.rollback_to_step == 100
    assert action.skip_samples == [(400, 480)]
    assert action.reason == (
        "rollback 1 of 3 to step 100, without the data of steps 101 to 120 (samples 400 to 480): "
        "the loss rose"
    )


def test_a_checkpoint_of_the_onset_itself_is_not_from_before() -> None:
    (action,) = decided_on((100, 120), on=ground(80, 100))
    assert action.rollback_to_step == 80


def test_one_whose_scores_have_regressed_is_passed_over_unless_there_is_no_other(
    tmp_path: Path,
) -> None:
    run = run_dir(tmp_path)
    for number in (80, 90, 100):
        add_checkpoint(run, number, 1)

    def mark(number: int) -> None:
        report = RegressionReport(
            step=number,
            checkpoint=run.checkpoint(number).identity() or "",
            compared_with=[],
            regressions=[],
            unhealthy=True,
            judged_at=1.0,
        )
        write_record(run.evaluation(number).regressions_path, report)

    mark(100)
    assert decided_on((101, 120), on=ground_of(run, TRAIN))[0].rollback_to_step == 90
    mark(90)
    mark(80)
    assert decided_on((101, 120), on=ground_of(run, TRAIN))[0].rollback_to_step == 100
    assert ground_of(run, TRAIN).newest_step == 100


def test_without_a_healthy_checkpoint_it_begins_anew_without_those_batches() -> None:
    (action,) = decided_on((3, 22), on=ground(10, 20))
    assert (action.rollback_to_step, action.skip_samples) == (0, [(0, 88)])
    assert "to the beginning, without the data of steps 1 to 22" in action.reason


def test_a_spike_that_comes_back_is_met_further_back_each_time() -> None:
    actions = decided_on((101, 120), (104, 125), (90, 110), on=ground(60, 80, 100))
    assert [action.rollback_to_step for action in actions] == [100, 80, 60]
    assert actions[1].skip_samples == [(320, 500)]


def test_what_was_saved_anew_on_the_way_back_into_the_spike_does_not_hide_older_ones() -> None:
    """The second attempt saved step 102 before the same spike; 100 had not helped."""
    spike = struck(1, 101, 120, decided_on((101, 120), on=ground(80, 100))[0])
    action = decide([spike, struck(2, 105, 125)], CONFIG, now=5.0, ground=ground(80, 100, 102))
    assert action.rollback_to_step == 80


def test_a_spike_beyond_the_last_one_begins_with_the_newest_checkpoint_again() -> None:
    actions = decided_on((101, 120), (121, 140), (300, 320), on=ground(80, 100, 120, 280))
    assert [action.rollback_to_step for action in actions] == [100, 120, 280]


def test_behind_the_oldest_checkpoint_is_the_beginning() -> None:
    actions = decided_on((101, 120), (101, 120), (101, 120), on=ground(100))
    assert [action.rollback_to_step for action in actions] == [100, 0, 0]


def test_the_budget_ends_it_with_what_was_tried() -> None:
    *_, last = decided_on(*[(101, 120)] * 4, on=ground(60, 80, 100))
    assert (last.kind, last.stop, last.skip_samples) == ("fix_by_user", True, [])
    assert last.reason == (
        "all 3 rollbacks are used up (from step 120 to step 100 without 80 samples, from step 120 to "
        "step 80 without 160 samples, from step 120 to step 60 without 240 samples), and skipping "
        "data did not cure the loss: look at the learning rate, its warm-up and the model; the loss "
        "rose"
    )
    assert last.rollback_to_step == 100  # for whoever starts it again


def test_no_rollback_is_made_when_the_budgets_allow_none() -> None:
    (action,) = decided_on((101, 120), on=ground(), config=RecoveryConfig(max_rollbacks=0))
    assert action.stop and action.reason.startswith("recovery.max_rollbacks = 0 allows no rollback")
    (action,) = decided_on((101, 120), on=ground(100), config=RecoveryConfig(max_restarts=0))
    assert action.stop and action.reason.startswith("recovery.max_restarts = 0 allows no restart")
    assert action.rollback_to_step == 100


def test_a_person_who_starts_the_run_again_has_the_whole_budget() -> None:
    config = RecoveryConfig(max_rollbacks=1)
    history = [struck(1, 101, 120), struck(2, 101, 120), struck(3, 101, 120)]
    for index in range(3):
        action = decide(history[: index + 1], config, now=0.0, ground=ground(100))
        history[index] = replace(history[index], action=action)
    assert [attempt.action.stop for attempt in history if attempt.action] == [False, True, False]


def test_positions_are_right_after_earlier_skips() -> None:
    """Samples 400 to 480 are skipped since step 100: step 101 reads 480, so step 130 ends at 600."""
    on = ground(100, 110, spans=((400, 480),))
    assert on.saved[-1].position == 520
    (action,) = decided_on((115, 130), on=on)
    assert action.skip_samples == [(520, 600)]
    (action,) = decided_on((105, 130), on=on)
    assert action.skip_samples == [(400, 600)]


def test_positions_run_on_beyond_the_end_of_the_data() -> None:
    on = Ground((SavedState(990, 3996),), SampleStream.of(TRAIN, ((0, 8), (100, 104))))
    (action,) = decided_on((995, 998), on=on)
    assert action.skip_samples == [(3996, 4036)]  # 4000 to 4008 were jumped over


def corrupted(**changes: Any) -> tuple[AnomalyEvent, Verdict]:
    event = anomaly(101, 120, kind="replica_mismatch", rank=1, node="a", **changes)
    found = verdict("NodeFailure", "restart_exclude_node", faulty_rank=1, faulty_node="a")
    return event, found


def test_after_corruption_nothing_counts_that_was_saved_since_the_replicas_were_equal() -> None:
    event, found = corrupted()
    history = [PastAttempt(1, found, None, anomaly=event, nodes=("a",))]
    action = decide(history, CONFIG, now=0.0, pool=["a", "b"], ground=ground(80, 100, 110))
    assert (action.kind, action.exclude_nodes) == ("restart_exclude_node", ["a"])
    assert (action.rollback_to_step, action.skip_samples) == (100, [])
    assert action.reason == "restart 1 of 10 from step 100: NodeFailure on rank 1, without a"


@pytest.mark.parametrize("stop", [False, True])
def test_rollbacks_are_read_back_from_the_run_directory(tmp_path: Path, stop: bool) -> None:
    run = run_dir(tmp_path)
    first = anomaly(41, 50)
    add_attempt(run, 1, 10.0, 20.0, [start(11.0), step(12.0, 50, 1.0), first], found=SPIKE)
    for saved in (20, 40, 45):
        add_checkpoint(run, saved, attempt=1)
    assert saved_steps(run) == [20, 40, 45]
    config = RecoveryConfig(max_rollbacks=0 if stop else 3)
    past = attempt_history(run)
    assert past[0].anomaly == first
    action = decide(past, config, now=0.0, ground=ground_of(run, TRAIN))
    assert (action.rollback_to_step, action.stop) == (40, stop)
    write_record(run.attempt(1).action_path, action)
    assert saved_steps(run) == [20, 40]
    spans = [] if stop else [(40, 80)]  # these markers count one sample a step
    assert lineage_of(run).skip_samples == spans


def saved_steps(run: RunDir) -> list[int]:
    return [marker.step for _, marker in valid_checkpoints(run)]


def test_a_restart_after_a_rollback_names_the_checkpoint_that_counts(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    add_attempt(run, 1, 10.0, 20.0, [start(11.0), anomaly(41, 50)], found=SPIKE)
    for saved in (40, 45):
        add_checkpoint(run, saved, attempt=1)
    back = decide(attempt_history(run), CONFIG, now=0.0, ground=ground_of(run, TRAIN))
    write_record(run.attempt(1).action_path, back)
    killed = verdict("NodeFailure", "restart_same_nodes")
    restarted: list[StartEvent] = [start(31.0, step=40)]
    add_attempt(run, 2, 30.0, 40.0, [*restarted], found=killed)
    action = decide(attempt_history(run), CONFIG, now=0.0, ground=ground_of(run, TRAIN))
    assert action.reason == "restart 2 of 10 from step 40: NodeFailure"
    assert action.rollback_to_step is None
    assert (run.checkpoint(45).path / COMMIT_MARKER_NAME).exists()
