"""What one checkpoint's evaluation leaves, whatever happens to its jobs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.files import write_text
from configs.records import EvaluationScores, ExportRecord
from configs.rundir import COMMIT_MARKER_NAME, EvaluationDir, RunDir, write_record
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


def commit(run_dir: Path, content: str) -> str:
    """Leave a marker of that content; returns the checkpoint's identity."""
    checkpoint = RunDir(run_dir).checkpoint(5)
    checkpoint.path.mkdir(parents=True, exist_ok=True)
    write_text(checkpoint.path / COMMIT_MARKER_NAME, content)
    identity = checkpoint.identity()
    assert identity is not None
    return identity


def test_scores_belong_to_the_checkpoint_that_is_there(
    tmp_path: Path, evaluation: EvaluationDir
) -> None:
    first = commit(tmp_path, "first")
    scores = EvaluationScores(step=5, scores=[], tasks=[], checkpoint=first, plan_sha256="")
    write_record(evaluation.scores_path, scores)
    assert evaluate(tmp_path) == scores
    assert commit(tmp_path, "again") != first
    assert evaluation.scores() is None
    commit(tmp_path, "first")
    assert evaluation.scores() == scores


@pytest.mark.slow
def test_a_checkpoint_that_was_saved_again_is_evaluated_anew(
    tmp_path: Path, evaluation: EvaluationDir
) -> None:
    """From the export on, which fails here; a job that reads the export before it is ended first."""
    first = commit(tmp_path, "first")
    evaluation.model_dir.mkdir(parents=True)
    export = ExportRecord(checkpoint=first, started_at=1.0, ended_at=2.0)
    write_record(evaluation.export_path, export)
    assert evaluation.export() == export
    scores = EvaluationScores(step=5, scores=[], tasks=[], checkpoint=first, plan_sha256="")
    write_record(evaluation.scores_path, scores)
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    job_dir = evaluation.job_dir("infer-1")
    handle = LocalLauncher().submit(
        JobSpec(key=str(job_dir), name="test", argv=argv, job_dir=job_dir)
    )
    commit(tmp_path, "again")
    assert evaluation.export() is None
    assert evaluate(tmp_path) is None
    assert LocalLauncher().poll(handle).state is JobState.CANCELLED
    failure = evaluation.failure()
    assert failure is not None and failure.stage == "export"
    assert "step_00000005" in failure.reason
    assert not evaluation.scores_path.exists()


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
