"""One question at a time: earlier questions' jobs are ended, their scores refused, and nobody is in another's way."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
from evaluation_setup import REPOSITORY, STEP, prepare_evaluation, stage_command
from prefect.logging import disable_run_logger

import tasks.evaluate.infer as infer_module
from configs.errors import EvaluationError, RunDirectoryError
from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, RunDir, write_record
from configs.schema import EvaluateConfig, LauncherConfig, RunConfig
from infra.launch.base import JobState
from infra.launch.local import LocalLauncher
from tasks.evaluate import plan_wait, task_jobs
from tasks.evaluate.folder import evaluated
from tasks.evaluate.holding import alone_at_work, at_work, in_charge
from tasks.evaluate.plan import EvaluationPlan, current_plan
from tasks.evaluate.planning import make_plan
from tasks.evaluate.task import EvaluationCancelled, evaluate_checkpoint
from tasks.evaluate.task_jobs import Work, begin_stage

SLEEP = ("-n", "1", "-r", "1", "import time; time.sleep(60)")


def work_on(folder: Path, warnings: list[str], **evaluate: object) -> Work:
    return Work(
        name="test-{stage}",
        evaluation=EvaluationDir(folder, step=0),
        arguments=SLEEP,
        settings=EvaluateConfig.model_validate(evaluate),
        launch=LauncherConfig(),
        launcher=LocalLauncher(),
        warn=warnings.append,
    )


@pytest.mark.parametrize("stage", ["infer", "score"])
def test_jobs_of_an_earlier_question_are_ended_and_those_of_this_one_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(task_jobs, "STAGES", {"infer": "timeit", "score": "timeit"})
    monkeypatch.setattr(task_jobs, "_FOLLOW", ())
    said: list[str] = []
    launcher = LocalLauncher()
    first = begin_stage(work_on(tmp_path, said, tasks=["a"]), "infer", {})
    same = begin_stage(work_on(tmp_path, said, tasks=["a"], scorers=3), "infer", {})
    assert (same, said) == (first, [])
    later = begin_stage(work_on(tmp_path, said, tasks=["a", "b"]), stage, {})
    try:
        assert launcher.poll(first).state is JobState.CANCELLED
        assert later.job_dir != first.job_dir
        assert launcher.poll(later).state is JobState.RUNNING
        assert said == ["infer-1 answers an earlier question: it is ended"]
    finally:
        launcher.cancel(later)


def test_scores_of_another_plan_are_no_answer(run: RunDir, tiny_model: Path) -> None:
    evaluation = prepare_evaluation(run, tiny_model, tasks=["heldout_cloze"])
    others = EvaluationScores(step=200, scores=[], tasks=["a"], plan_sha256="another")
    with pytest.raises(EvaluationError, match="answers another plan"):
        evaluated(evaluation, print, lambda look: write_record(evaluation.scores_path, others))


@pytest.mark.slow
def test_scoring_anew_leaves_alone_what_still_runs(inferred: EvaluationDir) -> None:
    run = RunDir(inferred.path.parent.parent)
    before = sorted(path.relative_to(inferred.path) for path in inferred.path.rglob("*"))
    with at_work(inferred):
        argv = [*stage_command("score", run), "--anew"]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "its jobs still run" in done.stderr
    after = {path.relative_to(inferred.path) for path in inferred.path.rglob("*")}
    assert after - set(before) == {Path("jobs.lock")}
    assert after >= set(before)


def test_jobs_work_beside_each_other_and_not_beside_scoring_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = EvaluationDir(tmp_path, step=0)
    with at_work(evaluation), at_work(evaluation), pytest.raises(RunDirectoryError):  # noqa: SIM117
        with alone_at_work(evaluation):
            pass
    looked: list[bool] = []
    monkeypatch.setattr(infer_module, "infer", lambda *_: looked.append(_is_refused(evaluation)))
    infer_module._main(evaluation, tmp_path)
    assert looked == [True]


def _is_refused(evaluation: EvaluationDir) -> bool:
    with pytest.raises(RunDirectoryError), alone_at_work(evaluation):
        pass
    return True


def test_a_runs_flow_waits_for_who_scores_its_checkpoint_anew(tmp_path: Path) -> None:
    evaluation = RunDir(tmp_path).evaluation(5)
    stop = threading.Event()
    stop.set()
    with disable_run_logger(), in_charge(evaluation), pytest.raises(EvaluationCancelled):
        evaluate_checkpoint.fn(RunConfig(run_dir=tmp_path), 5, stop)
    assert [path.name for path in evaluation.path.iterdir()] == ["lock"]
    with in_charge(evaluation), pytest.raises(RunDirectoryError, match="by another process"):  # noqa: SIM117
        with in_charge(evaluation):
            pass


def test_a_plan_that_does_not_fit_is_looked_at_once(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To see whether it fits is to look at every file of the tasks."""
    evaluation, config = run.evaluation(STEP), EvaluateConfig(tasks=["heldout_cloze"])
    make_plan(EvaluateConfig(tasks=["heldout_copy"]), evaluation, run.heldout_dir)
    looks, naps = 0, 0

    def look(config: EvaluateConfig, evaluation: EvaluationDir) -> EvaluationPlan | None:
        nonlocal looks
        looks += 1
        return current_plan(config, evaluation)

    def nap(_: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 20:
            make_plan(config, evaluation, run.heldout_dir)

    monkeypatch.setattr(plan_wait, "current_plan", look)
    monkeypatch.setattr(plan_wait.time, "sleep", nap)
    plan = plan_wait.await_plan(config, evaluation)
    assert [task.task for task in plan.tasks] == ["heldout_cloze"]
    assert (looks, naps) == (2, 20)
