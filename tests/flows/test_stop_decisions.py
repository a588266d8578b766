"""What the flow does after an attempt that was asked to stop, by what the run directory holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.errors import EXIT_CONTINUE, RunFailedError, RunStoppedError
from configs.events import EndEvent, StepEvent
from configs.files import append_json_line
from configs.records import Action, AttemptRecord
from configs.rundir import RunDir, write_record
from flows.pretrain import end_if_it_was_ended_meanwhile, leave_or_go_on
from tasks.train.task import forget_stop_file

STARTED_AT = 100.0


@pytest.fixture(autouse=True)
def no_flow_run() -> Iterator[None]:
    with disable_run_logger():
        yield


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def stopped(run: RunDir, number: int, by: str, *, steps: int, ended_at: float) -> AttemptRecord:
    """An attempt that made some steps and was stopped."""
    attempt = run.attempt(number)
    record = AttemptRecord(
        number=number, key="k", job_id="j", submitted_at=0.0, ended_at=ended_at, outcome="stopped"
    )
    write_record(attempt.record_path, record)
    for step in range(1, steps + 1):
        event = StepEvent(
            time=1.0, step=step, loss=1.0, grad_norm=1.0, learning_rate=1.0, step_time_s=1.0,
            tokens_per_s=1.0,
        )  # fmt: skip
        append_json_line(attempt.events_path, event.model_dump())
    end = EndEvent(time=1.0, step=steps, reason="stopped", stopped_by=by)
    append_json_line(attempt.events_path, end.model_dump())
    return record


def test_a_signal_is_followed_by_a_new_attempt(run: RunDir) -> None:
    record = stopped(run, 1, "SIGTERM", steps=3, ended_at=200.0)
    leave_or_go_on(run, record, STARTED_AT)


def test_a_stop_file_ends_the_flow(run: RunDir) -> None:
    record = stopped(run, 1, "stop file", steps=3, ended_at=200.0)
    with pytest.raises(RunStoppedError, match="run the same command again to continue") as raised:
        leave_or_go_on(run, record, STARTED_AT)
    assert raised.value.exit_code == EXIT_CONTINUE


def test_a_stop_file_that_was_obeyed_before_this_flow_does_not_end_it(run: RunDir) -> None:
    record = stopped(run, 1, "stop file", steps=3, ended_at=90.0)
    leave_or_go_on(run, record, STARTED_AT)


def test_stops_without_a_step_come_to_an_end(run: RunDir) -> None:
    for number in (1, 2):
        record = stopped(run, number, "SIGUSR1", steps=0, ended_at=200.0)
        leave_or_go_on(run, record, STARTED_AT)
    record = stopped(run, 3, "SIGUSR1", steps=0, ended_at=200.0)
    with pytest.raises(RunFailedError, match=r"3 attempts in a row were told to stop \(SIGUSR1\)"):
        leave_or_go_on(run, record, STARTED_AT)
    record = stopped(run, 4, "SIGUSR1", steps=1, ended_at=200.0)
    leave_or_go_on(run, record, STARTED_AT)


def test_the_stop_file_is_removed_by_whoever_starts_again(run: RunDir) -> None:
    assert not forget_stop_file(run)
    run.stop_path.touch()
    assert forget_stop_file(run)
    assert not run.stop_path.exists()


def failed_for_good(run: RunDir, number: int, *, ended_at: float) -> None:
    attempt = run.attempt(number)
    record = AttemptRecord(
        number=number, key="k", job_id="j", submitted_at=0.0, ended_at=ended_at, outcome="failed"
    )
    write_record(attempt.record_path, record)
    action = Action(
        kind="none", stop=True, reason="somebody has cancelled the job", decided_at=ended_at
    )
    write_record(attempt.action_path, action)


def test_a_flow_that_waited_obeys_what_the_one_before_it_decided(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_for_good(run, 1, ended_at=200.0)
    end_if_it_was_ended_meanwhile(run)  # It has not waited: a person has started the run again.
    monkeypatch.setattr("flows.pretrain.waited_since", lambda _: 150.0)
    with pytest.raises(RunFailedError, match=r"attempt 1 has ended this run .*: somebody has canc"):
        end_if_it_was_ended_meanwhile(run)
    stopped(run, 2, "stop file", steps=3, ended_at=201.0)
    with pytest.raises(RunStoppedError, match="ended on purpose in attempt 2"):
        end_if_it_was_ended_meanwhile(run)
    stopped(run, 3, "SIGTERM", steps=3, ended_at=202.0)
    end_if_it_was_ended_meanwhile(run)
    monkeypatch.setattr("flows.pretrain.waited_since", lambda _: 300.0)
    failed_for_good(run, 4, ended_at=250.0)
    end_if_it_was_ended_meanwhile(run)  # That was before: the server starts it again.
