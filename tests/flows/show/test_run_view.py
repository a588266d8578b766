"""RunView: snapshots of a run directory while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_run import KILLED, STRAGGLER, SyntheticRun, crashed_and_recovered, loss_at

from configs.events import SnapshotEvent
from configs.files import write_text
from flows.show import readers
from flows.show.notices import notices
from flows.show.panel import activity
from flows.show.state import Restart, RunView


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=200)
    snapshot = RunView(made.run).refresh()
    assert snapshot.stage == "prepare"
    assert (snapshot.step, snapshot.total_steps, snapshot.loss) == (0, 200, None)
    assert snapshot.time_left_s is None
    assert RunView(type(made.run)(tmp_path / "nowhere")).refresh().stage == "prepare"


def test_given_total_steps_win_over_the_config(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=200)
    assert RunView(made.run, total_steps=50).refresh().total_steps == 50


def test_a_broken_config_leaves_the_total_unknown(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    view = RunView(made.run)
    assert view.refresh().total_steps == 200
    write_text(made.run.config_path, "train: [")
    assert view.refresh().total_steps is None


def test_follows_training_step_by_step(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=200)
    view = RunView(made.run)
    made.prepare()
    assert view.refresh().stage == "pretrain"
    made.submit(1)
    made.start(1)
    made.train(1, 1, 60)
    snapshot = view.refresh(now=made.clock + 3)
    assert (snapshot.step, snapshot.loss) == (60, loss_at(60))
    assert snapshot.validation_loss == loss_at(50) + 0.1
    assert (snapshot.step_time_s, snapshot.tokens_per_s) == (0.5, 4096.0)
    assert snapshot.last_checkpoint and snapshot.last_checkpoint.step == 50
    assert snapshot.last_checkpoint.size_bytes == 43_100_000
    made.step(1, 61)
    assert view.refresh().step == 61


def test_time_left_counts_steps_saves_and_validations(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=200)
    made.submit(1)
    made.start(1)
    made.train(1, 1, 100)
    # 1 s of validating came with each 50 steps of 0.5 s; commits came from the background
    assert RunView(made.run).refresh().time_left_s == pytest.approx(100 * (0.5 + 1.0 / 50))
    blocked = SnapshotEvent(time=made.clock, step=100, outcome="begun", blocked_s=2.0)
    made.event(1, blocked)
    assert RunView(made.run).refresh().time_left_s == pytest.approx(100 * (0.5 + 2.0 / 50))


def test_snapshots_and_anomalies(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    made.train(1, 1, 10)
    for step, outcome in ((5, "begun"), (8, "begun"), (10, "skipped")):
        event = {"time": made.clock, "step": step, "outcome": outcome, "blocked_s": 0.1}
        made.event(1, SnapshotEvent.model_validate(event))
    made.event(1, STRAGGLER)
    before = RunView(made.run).refresh()
    assert (before.snapshots.begun, before.snapshots.skipped) == (2, 1)
    assert before.snapshots.last_step == 8
    assert before.anomalies == ((1, STRAGGLER),)
    made.submit(2)
    made.start(2, step=5)
    assert RunView(made.run).refresh().snapshots.last_step is None


def test_a_job_that_is_asked_to_leave_is_seen_so(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    made.train(1, 1, 10)
    view = RunView(made.run)
    before = view.refresh(made.clock)
    assert activity(before) is None
    made.run.attempt(1).job_dir.mkdir(exist_ok=True)
    (made.run.attempt(1).job_dir / "cancel.json").write_text("{}")
    after = view.refresh(made.clock)
    assert str(activity(after)) == "attempt 1 is asked to save and leave"
    assert [n.text for n in notices(before, after)] == ["attempt 1 is asked to save and leave"]
    made.end(1, "stopped", reason="SIGTERM at step 10")
    last = view.refresh(made.clock)
    assert [n.text for n in notices(after, last)] == [
        "attempt 1 saved and stopped: SIGTERM at step 10"
    ]


def test_regressions_and_left_out_checkpoints_are_told(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    view = RunView(made.run)
    before = view.refresh(made.clock)
    made.score(50)
    made.leave_out(25)
    scored = view.refresh(made.clock)
    assert not scored.live_evaluations
    assert next(n.text for n in notices(before, scored)) == (
        "evaluation of step 25 is left out: 7 checkpoints waited, and newer ones go first"
    )
    made.regress(50, since=50, unhealthy=True)
    after = view.refresh(made.clock)
    assert [n.text for n in notices(scored, after)] == [
        "step 50 has regressed: heldout_cloze acc 0.1, usually 0.3 (worse by 0.2, limit 0.05); "
        "it counts as not healthy"
    ]


def test_one_slow_step_does_not_change_the_time_left_much(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=100)
    made.submit(1)
    made.start(1)
    made.step(1, 1, seconds=60.0)
    made.train(1, 2, 49)
    assert RunView(made.run).refresh().time_left_s == pytest.approx(51 * 0.5)


def test_a_crash_and_a_restart(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=200)
    view = RunView(made.run)
    made.prepare()
    made.submit(1)
    made.start(1)
    made.train(1, 1, 160)
    assert view.refresh().step == 160
    made.end(1, "failed", signal=9)
    dead = view.refresh()
    assert dead.attempt and dead.attempt.failed and dead.restarts == []
    made.decide(1)
    assert view.refresh().restarts == [
        Restart(1, "NodeFailure", "restart_same_nodes", "restart 1 of 10")
    ]
    made.submit(2)
    made.start(2, step=100)
    back = view.refresh()
    assert (back.step, back.loss) == (100, loss_at(100))
    assert back.validation_loss is None  # that of step 150 is undone
    made.train(2, 101, 200)
    made.end(2, "completed")
    assert (view.refresh().step, view.refresh().loss) == (200, loss_at(200))
    assert [a.last_step for a in view.refresh().attempts] == [160, 200]


def test_a_late_view_agrees_with_one_that_followed(tmp_path: Path) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    view = RunView(made.run)
    first = view.refresh(now=0.0)
    assert first == view.refresh(now=0.0) == RunView(made.run).refresh(now=0.0)
    assert first.stage == "done"
    assert [c.step for c in first.checkpoints] == [50, 100, 150, 200]


def test_a_torn_event_is_read_when_it_is_whole(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    view = RunView(made.run)
    made.step(1, 1)
    path = made.run.attempt(1).events_path
    whole = path.read_bytes()
    made.step(1, 2)
    longer = path.read_bytes()
    path.write_bytes(longer[: len(whole) + 20])
    assert view.refresh().step == 1
    path.write_bytes(longer)
    assert view.refresh().step == 2


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    with open(made.run.attempt(1).events_path, "a") as file:
        file.write('{"event": "step", "step": "many"}\n\0\0\0\n{"event": "novel"}\n')
    made.step(1, 1)
    assert RunView(made.run).refresh().step == 1


def test_evaluations_live_scored_failed_and_tried_again(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.begin_evaluation(50)
    view = RunView(made.run)
    assert [(e.step, e.stage) for e in view.refresh().live_evaluations] == [(50, "export")]
    made.begin_evaluation(50, "infer")
    made.begin_evaluation(100)
    assert [e.stage for e in view.refresh().live_evaluations] == ["infer", "export"]
    made.fail_evaluation(50)
    made.score(100)
    snapshot = view.refresh()
    assert snapshot.live_evaluations == []
    assert [f.step for f in snapshot.evaluation_failures] == [50]
    assert [s.step for s in snapshot.scores] == [100]
    made.score(50)
    assert view.refresh().evaluation_failures == []
    assert [s.step for s in view.refresh().scores] == [50, 100]


def test_the_last_checkpoint_is_always_evaluated_before_the_run_is_done(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=100)
    made.submit(1)
    made.start(1)
    made.train(1, 1, 100)
    made.score(50)
    view = RunView(made.run)
    assert view.refresh().stage == "pretrain"
    made.end(1, "completed")
    assert view.refresh().stage == "evaluate"
    made.fail_evaluation(100)
    assert view.refresh().stage == "done"


def test_without_evaluation_the_run_is_done_with_training(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=50)
    write_text(made.run.config_path, "train: {steps: 50}\nevaluate: {enabled: false}\n")
    made.submit(1)
    made.start(1)
    made.train(1, 1, 50)
    made.end(1, "completed")
    assert RunView(made.run).refresh().stage == "done"


def test_a_run_that_was_stopped_is_done(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    made.train(1, 1, 20)
    made.end(1, "failed", exit_code=1)
    made.decide(1, stop=True)
    snapshot = RunView(made.run).refresh()
    assert (snapshot.stage, snapshot.restarts) == ("done", [])
    assert snapshot.attempt and snapshot.attempt.verdict == KILLED


def test_a_checkpoint_without_marker_does_not_exist(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.run.checkpoint(50).path.mkdir(parents=True)
    view = RunView(made.run)
    assert view.refresh().checkpoints == ()
    made.checkpoint_files(1, 50)
    assert [c.step for c in view.refresh().checkpoints] == [50]


def test_a_failed_save_and_a_fault_are_kept(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    made.start(1)
    made.fail_save(1, 50)
    made.inject(1, 60)
    snapshot = RunView(made.run).refresh()
    assert [s.step for s in snapshot.failed_saves] == [50]
    assert [(number, fault.kind) for number, fault in snapshot.faults] == [(1, "kill")]


def test_nothing_new_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    view = RunView(made.run)
    view.refresh()
    parsed: list[object] = []
    monkeypatch.setattr(readers, "read_record", lambda path, kind: parsed.append(path))
    monkeypatch.setattr(readers, "read_json_lines", lambda path, offset: parsed.append(path) or [])
    view.refresh()
    assert parsed == []
    made.step(2, 201)
    view.refresh()
    assert parsed == [made.run.attempt(2).events_path]
