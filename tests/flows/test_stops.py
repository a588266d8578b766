"""Runs that are asked to stop: the job saves and leaves, and what it had trained is not trained again."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from configs.errors import EXIT_CONTINUE
from configs.events import EndEvent, StartEvent, StepEvent
from configs.rundir import AttemptDir, RunDir
from tests.flows.helpers import overland, rank_processes, start_overland, tiny_config, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]

STEPS = 400


def long_run(folder: Path) -> Path:
    """Long enough to be stopped on the way, and without a checkpoint that is due before."""
    return tiny_config(
        folder,
        train={"steps": STEPS, "validation_interval_steps": STEPS},
        checkpoint={"interval_steps": STEPS},
    )


def steps_of(attempt: AttemptDir) -> list[int]:
    return [event.step for event in attempt.events() if isinstance(event, StepEvent)]


def end_of(attempt: AttemptDir) -> EndEvent:
    (end,) = [event for event in attempt.events() if isinstance(event, EndEvent)]
    return end


def start_training(config: Path, log: Path) -> tuple[subprocess.Popen[bytes], RunDir]:
    """A command whose job has come to its tenth step."""
    flow = start_overland("run", config, "--json", log=log)
    run = RunDir(config.parent / "run")
    wait_for(lambda: len(steps_of(run.attempt(1))) >= 10, flow, log)
    return flow, run


def check_continued(run: RunDir) -> None:
    """Each step was made once, the second attempt's from where the first had stopped."""
    first, second = run.attempts()
    (start,) = [event for event in second.events() if isinstance(event, StartEvent)]
    stopped_at = end_of(first).step
    assert start.step == stopped_at < STEPS
    assert steps_of(first) + steps_of(second) == list(range(1, STEPS + 1))
    assert run.checkpoint(stopped_at).is_committed()


@pytest.mark.soak
def test_a_stop_file_ends_the_run_and_the_next_one_continues(tmp_path: Path) -> None:
    config, log = long_run(tmp_path), tmp_path / "log"
    flow, run = start_training(config, log)
    run.stop_path.touch()
    assert flow.wait(180) == EXIT_CONTINUE, log.read_text()
    (attempt,) = run.attempts()
    record, end = attempt.record(), end_of(attempt)
    assert record is not None
    assert (record.outcome, record.exit_code) == ("stopped", EXIT_CONTINUE)
    assert (end.reason, end.stopped_by) == ("stopped", "stop file")
    assert record.reason == f"stop file at step {end.step}"
    text = log.read_text()
    assert f"training has stopped as {run.stop_path} asked, saved at step {end.step}" in text
    summary = json.loads(text.splitlines()[-1])
    assert summary["attempts"][0]["outcome"] == "stopped"
    assert summary["failure"]["interrupted"] is True

    result = overland("run", config, "--json")
    assert result.returncode == 0, result.stderr
    assert not run.stop_path.exists()
    check_continued(run)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=["SIGUSR1", "SIGTERM"])
def test_a_signal_from_outside_costs_a_save_and_a_start(
    tmp_path: Path, number: signal.Signals
) -> None:
    """As a scheduler sends it, to what it has started: the agent."""
    config, log = long_run(tmp_path), tmp_path / "log"
    flow, run = start_training(config, log)
    agent = psutil.Process(rank_processes(run.path)[0].pid).parent()
    assert agent is not None
    agent.send_signal(number)
    assert flow.wait(240) == 0, log.read_text()
    first, second = (attempt.record() for attempt in run.attempts())
    assert first is not None and second is not None
    assert (first.outcome, second.outcome) == ("stopped", "completed")
    assert end_of(run.attempt(1)).stopped_by == number.name
    assert run.attempt(1).verdict() is None
    check_continued(run)


@pytest.mark.soak
def test_ctrl_c_lets_the_job_save(tmp_path: Path) -> None:
    config, log = long_run(tmp_path), tmp_path / "log"
    flow, run = start_training(config, log)
    flow.send_signal(signal.SIGINT)
    assert flow.wait(180) == 130, log.read_text()
    record, end = run.attempt(1).record(), end_of(run.attempt(1))
    assert record is not None
    assert (record.outcome, record.reason) == ("cancelled", "interrupted from the keyboard")
    assert end.stopped_by == "SIGTERM"
    status = overland("status", run.path)
    assert f"continue from step {end.step}" in status.stdout
    result = overland("run", config, "--json")
    assert result.returncode == 0, result.stderr
    check_continued(run)
