"""What one checkpoint's evaluation leaves, whatever happens to its jobs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, RunDir, write_record
from configs.schema import RunConfig
from infra.launch.base import JobSpec, JobState
from infra.launch.local import LocalLauncher
from tasks.evaluate.task import _free_job_dir, cancel_evaluations, evaluate_checkpoint


@pytest.fixture
def evaluation(tmp_path: Path) -> EvaluationDir:
    return RunDir(tmp_path).evaluation(5)


def evaluate(run_dir: Path) -> EvaluationScores | None:
    with disable_run_logger():
        return evaluate_checkpoint.fn(RunConfig(run_dir=run_dir), 5)


def test_scores_that_are_there_need_no_job(tmp_path: Path, evaluation: EvaluationDir) -> None:
    scores = EvaluationScores(step=5, scores=[], tasks=[], plan_sha256="")
    write_record(evaluation.scores_path, scores)
    assert evaluate(tmp_path) == scores
    assert [path.name for path in evaluation.path.iterdir()] == ["scores.json"]


def test_a_job_that_cannot_be_started_is_the_evaluations_failure(
    tmp_path: Path, evaluation: EvaluationDir
) -> None:
    evaluation.path.mkdir(parents=True)
    (evaluation.path / "jobs").write_text("no folder")
    assert evaluate(tmp_path) is None
    failure = evaluation.failure()
    assert failure is not None and failure.stage == "export"
    assert "jobs" in failure.reason


def test_a_folder_in_which_a_submission_was_cut_off_is_used_again(
    evaluation: EvaluationDir,
) -> None:
    """The supervisor may be at it still: under the same key, it starts one job."""
    launcher = LocalLauncher()
    first, second = (evaluation.job_dir(f"infer-{number}") for number in (1, 2))
    first.mkdir(parents=True)
    assert _free_job_dir(launcher, evaluation, "infer") == first
    argv = (sys.executable, "-c", "")
    launcher.submit(JobSpec(key=str(first), name="test", argv=argv, job_dir=first))
    assert _free_job_dir(launcher, evaluation, "infer") == second


def test_evaluation_jobs_whose_flow_run_is_cancelled_are_ended(
    tmp_path: Path, evaluation: EvaluationDir
) -> None:
    cancel_evaluations(RunConfig(run_dir=tmp_path))
    launcher = LocalLauncher()
    ended, running = (evaluation.job_dir(name) for name in ("export-1", "infer-2"))
    programs = {ended: "", running: "import time; time.sleep(60)"}
    handles = [
        launcher.submit(
            JobSpec(key=str(folder), name="test", argv=(sys.executable, "-c", code), job_dir=folder)
        )
        for folder, code in programs.items()
    ]
    while not launcher.poll(handles[0]).state.final:
        time.sleep(0.05)
    cancel_evaluations(RunConfig(run_dir=tmp_path))
    states = [launcher.poll(handle).state for handle in handles]
    assert states == [JobState.COMPLETED, JobState.CANCELLED]
