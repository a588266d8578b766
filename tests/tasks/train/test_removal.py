"""Removal of checkpoints on disk and in storage: nothing in use, nothing by halves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from s3_server import BUCKET, S3Server
from stored_checkpoints import commit, end, start_python, wait_for_line

from configs.errors import CheckpointError
from configs.events import AnomalyEvent
from configs.files import append_json_line, file_lock
from configs.records import (
    Action,
    EvaluationFailure,
    EvaluationScores,
    Score,
)
from configs.regression_schema import RegressionConfig
from configs.regressions import EvaluationLeftOut, RegressionReport
from configs.rundir import COMMIT_MARKER_NAME, RunDir, write_record
from configs.schema import RunConfig
from tasks.train import removal
from tasks.train.in_use import in_use, removable
from tasks.train.patience import Patience
from tasks.train.persist import open_folder
from tasks.train.removal import REMOVED, apply
from tasks.train.storage import open_storage
from tasks.train.telling_events import TellingEvents

HOLD = """
import sys
from pathlib import Path
from configs.rundir import RunDir
from tasks.train.in_use import in_use
with in_use(RunDir(Path(sys.argv[1])).checkpoint(int(sys.argv[2]))):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""

APPLY = """
import sys
from pathlib import Path
from configs.rundir import RunDir
from configs.schema import RunConfig
from tasks.train.removal import apply
apply(RunDir(Path(sys.argv[1])), RunConfig.model_validate_json(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def config(**checkpoint: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "checkpoint": {"interval_steps": 10, "keep_last": 1, **checkpoint},
            "anomalies": {"enabled": False},
            "evaluate": {"enabled": False},
        }
    )


def changed(config: RunConfig, section: str, **changes: Any) -> RunConfig:
    part = getattr(config, section).model_copy(update=changes)
    return config.model_copy(update={section: part})


def steps(run: RunDir) -> list[int]:
    return [checkpoint.step for checkpoint in run.committed_checkpoints()]


def left_over(run: RunDir) -> list[Path]:
    folder = run.checkpoints_dir / REMOVED
    return list(folder.iterdir()) if folder.is_dir() else []


def test_what_no_rule_keeps_is_gone(run: RunDir) -> None:
    for step in (10, 20, 30):
        commit(run, step)
    (run.checkpoint(40).path).mkdir()  # is being saved
    assert apply(run, config(), 30) == [10, 20]
    assert steps(run) == [30]
    assert left_over(run) == []
    assert run.checkpoint(40).path.is_dir()
    assert apply(run, config(), 30) == []


def test_without_keep_last_all_stay(run: RunDir) -> None:
    for step in (10, 20):
        commit(run, step)
    assert apply(run, config(keep_last=None), 20) == []
    assert steps(run) == [10, 20]


def test_where_training_stands_is_read_from_its_events(run: RunDir) -> None:
    """After a damaged newest checkpoint was passed over, and after a rollback, it is not the newest."""
    for step in (10, 20, 30, 40):
        commit(run, step)
    assert apply(run, config()) == []
    for attempt, lines in (
        (
            1,
            [
                '{"event": "checkpoint", "time": 1, "step": 40, "outcome": "committed", "duration_s": 1}'
            ],
        ),
        (
            2,
            [
                '{"event": "start", "time": 2, "step": 20, "checkpoint": null, "world_size": 1,'
                ' "device": "", "precision": "", "num_parameters": 1, "padded_vocab_size": 1}',
                '{"event": "checkpoint", "time": 3, "step": 30, "outcome": "failed", "duration_s": 1}',
            ],
        ),
    ):
        run.attempt(attempt).path.mkdir(parents=True)
        run.attempt(attempt).events_path.write_text("\n".join(lines) + "\n")
    assert apply(run, config()) == [10]
    assert steps(run) == [20, 30, 40]


# --- facts out of the run directory ---------------------------------------------------------------


def anomaly(run: RunDir, attempt: int, kind: str, onset: int, at: float) -> None:
    event = AnomalyEvent.model_validate(
        {
            "time": at, "step": onset + 5, "kind": kind, "onset_step": onset,
            "fatal": kind != "straggler", "message": "the loss is high",
        }
    )  # fmt: skip
    path = run.attempt(attempt).events_path
    path.parent.mkdir(parents=True, exist_ok=True)
    append_json_line(path, event.model_dump(mode="json"))


def test_events_are_read_on_from_where_they_were_read_to(run: RunDir) -> None:
    anomaly(run, 1, "loss_spike", 15, at=1.0)
    events = TellingEvents(run)
    assert (events.position(), events.last_onset()) == (None, 15)
    path = run.attempt(1).events_path
    committed = (
        '{"event": "checkpoint", "time": 2, "step": 20, "outcome": "committed", "duration_s": 1}'
    )
    with open(path, "a") as file:
        file.write(committed[:30])
    assert events.position() is None, "a line that is being written waits"
    with open(path, "r+") as file:
        # What was read is not read again.
        size_bytes = path.stat().st_size - 30
        file.write("#" * (size_bytes - 1) + "\n" + committed + "\n")
    assert (events.position(), events.last_onset()) == (20, 15)
    anomaly(run, 2, "nonfinite", 38, at=3.0)
    assert (events.position(), events.last_onset()) == (20, 38)


def test_the_last_healthy_one_before_an_anomaly_stays(run: RunDir) -> None:
    for step in range(10, 60, 10):
        commit(run, step)
    anomaly(run, 1, "loss_spike", 15, at=1.0)
    anomaly(run, 2, "nonfinite", 38, at=2.0)
    anomaly(run, 2, "straggler", 45, at=3.0)
    with open(run.attempt(2).events_path, "a") as file:
        file.write('{"event": "anomaly", "tor')
    apply(run, config(), 50)
    assert steps(run) == [30, 50]


def test_rolled_back_ones_go(run: RunDir) -> None:
    for step in (10, 20, 30):
        commit(run, step, attempt=1)
    action = Action(
        kind="rollback_skip_data", stop=False, reason="", rollback_to_step=10, decided_at=0.0
    )
    run.attempt(1).path.mkdir(parents=True)
    write_record(run.attempt(1).action_path, action)
    commit(run, 40, attempt=2)
    apply(run, config(keep_last=2), 40)
    assert steps(run) == [10, 40]


def score(run: RunDir, step: int, value: float) -> None:
    scores = EvaluationScores(
        step=step,
        scores=[Score(task="mine", metric="acc,none", value=value)],
        tasks=["mine"],
        checkpoint=run.checkpoint(step).identity() or "",
        plan_sha256="",
    )
    write_record(run.evaluation(step).scores_path, scores)


def test_the_best_stays(run: RunDir) -> None:
    for step, value in ((10, 0.1), (20, 0.9), (30, 0.5), (40, 0.2)):
        commit(run, step)
        score(run, step, value)
    best = config(keep_best=1, keep_best_metric="mine/acc,none", keep_best_mode="max")
    apply(run, best, 40)
    assert steps(run) == [20, 40]


def test_what_waits_for_its_evaluation_stays(run: RunDir) -> None:
    for step in (10, 20, 30, 40, 50):
        commit(run, step)
    evaluated = changed(config(), "evaluate", enabled=True, every_nth=2)
    write_record(
        run.evaluation(40).failure_path,
        EvaluationFailure(step=40, stage="infer", reason="", failed_at=time.time() + 1),
    )
    apply(run, evaluated, 50)
    assert steps(run) == [20, 50]
    score(run, 20, 1.0)
    apply(run, evaluated, 50)
    assert steps(run) == [50]


def test_one_that_was_left_out_waits_for_no_evaluation(run: RunDir) -> None:
    for step in (10, 20):
        commit(run, step)
    identity = run.checkpoint(10).identity() or ""
    left = EvaluationLeftOut(step=10, checkpoint=identity, waiting=5, left_out_at=1.0)
    write_record(run.evaluation(10).left_out_path, left)
    apply(run, changed(config(), "evaluate", enabled=True), 20)
    assert steps(run) == [20]


def judged(run: RunDir, step: int, *, unhealthy: bool) -> None:
    score(run, step, 0.5)
    report = RegressionReport(
        step=step,
        checkpoint=run.checkpoint(step).identity() or "",
        compared_with=[1] if step > 10 else [],
        regressions=[],
        unhealthy=unhealthy,
        judged_at=1.0,
    )
    write_record(run.evaluation(step).regressions_path, report)


@pytest.mark.parametrize(("marks", "left"), [(True, [20, 50]), (False, [50])])
def test_the_newest_whose_scores_have_not_regressed_stays_where_that_matters(
    run: RunDir, marks: bool, left: list[int]
) -> None:
    for step in (10, 20, 30, 40, 50):
        commit(run, step)
        judged(run, step, unhealthy=step in (30, 40))
    run.evaluation(50).regressions_path.unlink()  # not compared yet
    regressions = RegressionConfig(mark_unhealthy=marks)
    apply(run, changed(config(), "evaluate", enabled=True, regressions=regressions), 50)
    assert steps(run) == left


def test_a_failure_of_an_earlier_checkpoint_of_the_step_does_not_count(run: RunDir) -> None:
    write_record(
        run.evaluation(10).failure_path,
        EvaluationFailure(step=10, stage="infer", reason="", failed_at=time.time() - 60),
    )
    for step in (10, 20):
        commit(run, step)
    apply(run, changed(config(), "evaluate", enabled=True), 20)
    assert steps(run) == [10, 20]


# --- locks ----------------------------------------------------------------------------------------


def test_what_another_process_reads_stays_until_it_is_done(run: RunDir) -> None:
    for step in (10, 20, 30):
        commit(run, step)
    reader = start_python(HOLD, str(run.path), "10")
    try:
        wait_for_line(reader, "held")
        assert apply(run, config(), 30) == [20]
        assert steps(run) == [10, 30]
        assert reader.stdin is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
        wait_for_line(reader, "released")
        assert apply(run, config(), 30) == [10]
    finally:
        end(reader)


def test_a_killed_reader_holds_nothing(run: RunDir) -> None:
    for step in (10, 20):
        commit(run, step)
    reader = start_python(HOLD, str(run.path), "10")
    wait_for_line(reader, "held")
    end(reader)
    assert apply(run, config(), 20) == [10]


def test_two_readers_share(run: RunDir) -> None:
    checkpoint = commit(run, 10)
    with in_use(checkpoint) as marker, in_use(checkpoint):
        assert marker.step == 10
        with removable(checkpoint) as free:
            assert not free


def test_who_comes_too_late_is_told(run: RunDir) -> None:
    checkpoint = commit(run, 10)
    commit(run, 20)
    apply(run, config(), 20)
    with (
        pytest.raises(CheckpointError, match="is no committed checkpoint any more"),
        in_use(checkpoint),
    ):
        pass


def test_a_lock_on_a_marker_that_was_replaced_is_taken_on_the_new_one(run: RunDir) -> None:
    checkpoint = commit(run, 10)
    with in_use(checkpoint):
        commit(run, 10, attempt=2)
        with removable(checkpoint) as free:
            assert free
    with in_use(checkpoint) as marker:
        assert marker.attempt == 2


# --- storage --------------------------------------------------------------------------------------


def url(step: int) -> str:
    return f"s3://{BUCKET}/run/step_{step:08d}-001"


def keys_of(s3: S3Server) -> set[str]:
    return {key.split("/")[1] for key in s3.stored_keys()}


def test_one_process_at_a_time_removes(run: RunDir) -> None:
    for step in (10, 20):
        commit(run, step)
    with file_lock(run.checkpoints_dir / ".removing.lock"):
        assert apply(run, config(), 20) == []
    assert apply(run, config(), 20) == [10]


def test_files_in_storage_go_too(run: RunDir, s3: S3Server) -> None:
    for step in (10, 20):
        commit(run, step, storage=url(step))
    assert apply(run, config(), 20) == [10]
    assert keys_of(s3) == {"step_00000020-001"}
    assert left_over(run) == []


def test_a_storage_that_does_not_answer_is_left_for_later(
    run: RunDir, s3: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (10, 20):
        commit(run, step, storage=url(step))
    monkeypatch.setattr(removal, "BRIEF", Patience(request_attempts=1, attempts=1))
    fault = s3.inject("503", method="DELETE", times=100)
    assert apply(run, config(), 20) == [10]  # nobody finds it any more
    assert steps(run) == [20]
    assert len(left_over(run)) == 1
    assert "is removed later: s3://" in caplog.text
    fault.times = 0
    apply(run, config(), 20)
    assert left_over(run) == []
    assert keys_of(s3) == {"step_00000020-001"}


def test_a_removal_that_was_killed_is_finished_by_the_next(run: RunDir, s3: S3Server) -> None:
    for step in (10, 20):
        commit(run, step, storage=url(step))
    fault = s3.inject("hang", method="POST", query="delete", times=100)
    remover = start_python(APPLY, str(run.path), config().model_dump_json(), "20")
    try:
        deadline = time.monotonic() + 240
        while not fault.struck and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        end(remover)
    assert fault.struck
    assert steps(run) == [20]  # never seen half
    assert [(folder / COMMIT_MARKER_NAME).is_file() for folder in left_over(run)] == [True]
    fault.times = 0
    apply(run, config(), 20)
    assert left_over(run) == []
    assert keys_of(s3) == {"step_00000020-001"}


def begin_save(run: RunDir, step: int, storage: str) -> Path:
    """What a save leaves that is killed before its commit."""
    folder = run.checkpoint(step).path
    open_folder(folder, "a save", storage)
    with open_storage(storage, folder).write("__0_0.distcp") as file:
        file.write(b"content")
    return folder


def test_what_a_killed_save_left_goes_once_training_is_past_it(run: RunDir, s3: S3Server) -> None:
    begin_save(run, 10, url(10))
    under_way = begin_save(run, 30, url(30))
    commit(run, 20, storage=url(20))
    assert apply(run, config(keep_last=None), 20) == []
    assert not run.checkpoint(10).path.exists()
    assert under_way.is_dir()
    assert keys_of(s3) == {"step_00000020-001", "step_00000030-001"}


def test_what_a_killed_save_left_goes_when_the_step_is_saved_again(
    run: RunDir, s3: S3Server
) -> None:
    begin_save(run, 10, url(10))
    again = f"s3://{BUCKET}/run/step_00000010-002"
    folder = run.checkpoint(10).path
    open_folder(folder, "another save", again)
    assert len(left_over(run)) == 1
    commit(run, 10, attempt=2, storage=again)
    apply(run, config(), 10)
    assert keys_of(s3) == {"step_00000010-002"}
    assert left_over(run) == []


def test_a_save_that_is_under_way_at_the_same_place_is_left_alone(
    run: RunDir, s3: S3Server
) -> None:
    begin_save(run, 30, url(30))
    folder = run.checkpoint(30).path
    open_folder(folder, "the same attempt's next one", url(30))
    commit(run, 20, storage=url(20))
    apply(run, config(), 20)
    assert keys_of(s3) == {"step_00000020-001", "step_00000030-001"}


def test_a_place_that_another_checkpoint_uses_is_left_alone(run: RunDir, s3: S3Server) -> None:
    commit(run, 10, storage=url(20))
    commit(run, 20, storage=url(20))
    assert apply(run, config(), 20) == [10]
    assert keys_of(s3) == {"step_00000020-001"}
    assert len(s3.stored_keys()) == 3
