"""`overland run` as a user runs it: real torchrun jobs, real crashes, one JSON object at the end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from configs.events import StepEvent, ValidationEvent
from configs.rundir import COMMIT_MARKER_NAME, RunDir
from tests.flows.helpers import overland, start_overland, tiny_config, wait_for

# The first command, of `undisturbed`, is asked for before the server and starts Prefect's own.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undisturbed", "prefect_server")]


def losses(run: RunDir) -> dict[int, tuple[float, float]]:
    """Step -> (loss, gradient norm), the last attempt's where a step was computed twice."""
    steps = [e for a in run.attempts() for e in a.events() if isinstance(e, StepEvent)]
    return {event.step: (event.loss, event.grad_norm) for event in steps}


def validation_losses(run: RunDir) -> dict[int, float]:
    events = [e for a in run.attempts() for e in a.events() if isinstance(e, ValidationEvent)]
    return {event.step: event.loss for event in events}


def summary_of(stdout: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return summary


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = tmp_path_factory.mktemp("undisturbed")
    result = overland("run", tiny_config(folder), "--json")
    assert result.returncode == 0, result.stderr
    return RunDir(folder / "run")


def test_undisturbed_run(undisturbed: RunDir) -> None:
    summary = json.loads(undisturbed.summary_path.read_text())
    assert summary["status"] == "completed"
    assert summary["final_step"] == 12
    assert [c.step for c in undisturbed.committed_checkpoints()] == [4, 8, 12]
    assert len(summary["attempts"]) == 1
    assert summary["final_loss"] == losses(undisturbed)[12][0]
    assert losses(undisturbed)[12][0] < losses(undisturbed)[1][0]


def test_a_killed_rank_costs_nothing_but_time(tmp_path: Path, undisturbed: RunDir) -> None:
    """SIGKILL in mid-run: verdict, restart, and the very same loss curve; every checkpoint scored."""
    config = tiny_config(
        tmp_path,
        faults=[{"kind": "kill", "step": 6, "rank": 1}],
        evaluate={"enabled": True, "limit": 4},
        tracking={"enabled": True, "uri": f"sqlite:///{tmp_path}/mlflow.db"},
    )
    result = overland("run", config, "--json")
    assert result.returncode == 0, result.stderr
    run = RunDir(tmp_path / "run")
    assert losses(run) == losses(undisturbed)
    assert validation_losses(run) == validation_losses(undisturbed)

    summary = summary_of(result.stdout)
    assert summary["status"] == "completed"
    assert [a["outcome"] for a in summary["attempts"]] == ["failed", "completed"]
    assert summary["attempts"][0]["verdict"] == "NodeFailure"
    assert summary["attempts"][0]["action"] == "restart_same_nodes"
    assert run.attempts()[0].verdict().faulty_rank == 1  # type: ignore[union-attr]
    assert {row["step"] for row in summary["evaluations"]} == {4, 8, 12}
    assert {row["task"] for row in summary["evaluations"]} >= {"heldout_perplexity"}
    assert summary["mlflow_run_id"]
    assert summary["goodput"]["recomputed_s"] > 0
    assert "\x1b" not in result.stderr


def test_what_a_person_must_fix_stops_the_run(tmp_path: Path) -> None:
    faults = [{"kind": "exception", "step": 6, "exception": "KeyError", "message": "no_such_key"}]
    config = tiny_config(tmp_path, faults=faults)
    result = overland("run", config, "--json")
    assert result.returncode == 1
    summary = summary_of(result.stdout)
    assert summary["status"] == "failed"
    assert summary["final_step"] == 5
    assert summary["attempts"][0]["verdict"] == "KeyError"
    assert summary["attempts"][0]["action"] == "fix_by_user"
    assert "no_such_key" in result.stderr + result.stdout

    # The person has mended it and starts again: it goes on from the last checkpoint.
    again = overland("run", config, "faults=[]", "--json")
    assert again.returncode == 0, again.stderr
    assert summary_of(again.stdout)["final_step"] == 12


@pytest.mark.soak
def test_a_full_disk_costs_one_checkpoint_not_the_run(tmp_path: Path, undisturbed: RunDir) -> None:
    config = tiny_config(tmp_path, faults=[{"kind": "full_disk", "step": 8, "rank": 1}])
    result = overland("run", config, "--json")
    assert result.returncode == 0, result.stderr
    run = RunDir(tmp_path / "run")
    assert [c.step for c in run.committed_checkpoints()] == [4, 12]
    assert losses(run) == losses(undisturbed)
    assert len(run.attempts()) == 1


@pytest.mark.soak
def test_a_hang_is_ended_and_restarted(tmp_path: Path, undisturbed: RunDir) -> None:
    config = tiny_config(
        tmp_path,
        faults=[{"kind": "hang", "step": 6, "rank": 1}],
        recovery={"hang_timeout_s": 4, "min_hang_timeout_s": 2, "backoff_s": 0},
    )
    result = overland("run", config, "--json")
    assert result.returncode == 0, result.stderr
    assert losses(RunDir(tmp_path / "run")) == losses(undisturbed)
    assert summary_of(result.stdout)["attempts"][0]["verdict"] == "Hang"


def test_a_killed_flow_is_continued_with_the_same_job(tmp_path: Path, undisturbed: RunDir) -> None:
    """SIGKILL the flow in mid-run: the job goes on, a second flow waits for it, nothing is twice."""
    config = tiny_config(tmp_path)
    run = RunDir(tmp_path / "run")
    flow = start_overland("run", config, "--json", log=tmp_path / "first.log")
    wait_for(lambda: run.attempt(1).record(), flow, tmp_path / "first.log")
    busy = overland("run", config)
    assert busy.returncode == 2
    assert "in use by a live run" in busy.stderr
    wait_for(run.attempt(1).events_path.exists, flow, tmp_path / "first.log")
    os.killpg(flow.pid, signal.SIGKILL)
    flow.wait()
    again = overland("run", config, "--json")
    assert again.returncode == 0, again.stderr
    assert len(run.attempts()) == 1
    steps = [e.step for e in run.attempts()[0].events() if isinstance(e, StepEvent)]
    assert steps == list(range(1, 13))
    assert losses(run) == losses(undisturbed)

    # A finished run is only reported.
    third = overland("run", config, "--json")
    assert third.returncode == 0
    assert len(run.attempts()) == 1
    assert summary_of(third.stdout)["final_step"] == 12
    left = [p for p in psutil.process_iter(["cmdline"]) if str(run.path) in str(p.info["cmdline"])]
    assert not left

    # Its result is gone: what is missing is done again.
    (run.checkpoint(12).path / COMMIT_MARKER_NAME).write_text("garbage")
    fourth = overland("run", config, "--json")
    assert fourth.returncode == 0, fourth.stderr
    assert "its last checkpoint is gone or damaged" in fourth.stderr
    assert "step_00000012 is passed over: its COMMITTED.json is damaged" in fourth.stderr
    steps = [e.step for e in run.attempts()[1].events() if isinstance(e, StepEvent)]
    assert steps == [9, 10, 11, 12]
    assert run.committed_checkpoints()[-1].marker() is not None
    assert losses(run) == losses(undisturbed)


@pytest.mark.soak
def test_an_interrupt_cancels_the_job_and_can_be_continued(
    tmp_path: Path, undisturbed: RunDir
) -> None:
    config = tiny_config(tmp_path)
    run = RunDir(tmp_path / "run")
    log = tmp_path / "first.log"
    flow = start_overland("run", config, log=log)
    wait_for(run.committed_checkpoints, flow, log)
    processes = psutil.Process(flow.pid).children(recursive=True)
    assert any("prefect.server.api.server:create_app" in p.cmdline() for p in processes)
    os.killpg(flow.pid, signal.SIGINT)  # what a terminal does: the whole group gets it
    assert flow.wait(60) == 130
    assert "run the same command again" in log.read_text()
    assert not psutil.wait_procs(processes, timeout=30)[1]
    record = run.attempts()[0].record()
    assert record is not None and record.outcome in ("cancelled", "completed")
    again = overland("run", config, "--json")
    assert again.returncode == 0, again.stderr
    assert losses(run) == losses(undisturbed)


def test_a_config_that_changes_the_curve_is_refused(undisturbed: RunDir) -> None:
    folder = undisturbed.path.parent
    result = overland("run", folder / "config.yaml", "model.num_layers=3")
    assert result.returncode == 2
    assert "model.num_layers=2" in result.stderr
    assert "3" in result.stderr


@pytest.mark.soak
def test_stages_can_be_run_alone(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    early = overland("pretrain", config)
    assert early.returncode == 2 and "overland prepare" in early.stderr
    assert not (tmp_path / "run").exists()

    prepared = overland("prepare", config, "--json")
    assert prepared.returncode == 0, prepared.stderr
    assert json.loads(prepared.stdout)["documents_read"] == 240
    trained = overland("pretrain", config, "train.steps=4", "--json")
    assert trained.returncode == 0, trained.stderr
    tasks = "evaluate.tasks=[heldout_perplexity]"
    scored = overland("run", config, "train.steps=4", "evaluate.enabled=true", tasks, "--json")
    assert scored.returncode == 0, scored.stderr
    assert {row["task"] for row in summary_of(scored.stdout)["evaluations"]} == {
        "heldout_perplexity"
    }
    shown = overland("status", tmp_path / "run")
    assert shown.returncode == 0 and "4" in shown.stdout
