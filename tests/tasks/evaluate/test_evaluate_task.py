"""What one checkpoint's evaluation leaves, whatever happens to its jobs."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path

import pytest
from evaluation_setup import write_heldout
from prefect.logging import disable_run_logger

from configs.files import write_text
from configs.records import EvaluationScores, ExportRecord
from configs.rundir import COMMIT_MARKER_NAME, EvaluationDir, RunDir, write_record
from configs.schema import RunConfig
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus
from infra.launch.local import LocalLauncher
from tasks.evaluate.devices import SLOTS_VARIABLE
from tasks.evaluate.task import Ahead, cancel_evaluations, evaluate_checkpoint
from tasks.evaluate.task_jobs import Work, free_job_dir, gave_way, run_stages, work_on
from tasks.evaluate.times import read_times


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
    assert free_job_dir(launcher, evaluation, "infer") == first
    argv = (sys.executable, "-c", "")
    launcher.submit(JobSpec(key=str(first), name="test", argv=argv, job_dir=first))
    assert free_job_dir(launcher, evaluation, "infer") == second


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


class _Cluster:
    """A launcher whose jobs end as it was told, each right after its submission."""

    def __init__(self, *ends: JobState) -> None:
        self.ends = list(ends)
        self.states: dict[Path, JobState] = {}
        self.specs: list[JobSpec] = []

    def find(self, job_dir: Path) -> JobHandle | None:
        return JobHandle("", "1", job_dir, 0.0) if job_dir in self.states else None

    def submit(self, spec: JobSpec) -> JobHandle:
        self.states[spec.job_dir] = self.ends.pop(0)
        self.specs.append(spec)
        spec.job_dir.mkdir(parents=True)
        return JobHandle(spec.key, str(len(self.specs)), spec.job_dir, 0.0)

    def poll(self, handle: JobHandle) -> JobStatus:
        return JobStatus(self.states[handle.job_dir])

    def cancel(self, handle: JobHandle, *, grace_s: float = 10.0) -> None:
        """They have all ended."""

    def logs(self, handle: JobHandle) -> list[Path]:
        return []


@pytest.mark.parametrize(
    ("ends", "jobs"),
    [
        ([JobState.PREEMPTED, JobState.NODE_FAIL, JobState.FAILED], ["export-1", "export-2", "export-3"]),
        ([JobState.FAILED], ["export-1"]),
    ],
)  # fmt: skip
def test_jobs_that_gave_way_to_others_are_submitted_again(
    tmp_path: Path,
    evaluation: EvaluationDir,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[JobState],
    jobs: list[str],
) -> None:
    cluster = _Cluster(*ends)
    monkeypatch.setattr("tasks.evaluate.task.make_launcher", lambda _: cluster)
    assert evaluate(tmp_path) is None
    assert [folder.name for folder in cluster.states] == jobs
    failure = evaluation.failure()
    assert failure is not None
    assert failure.stage == "export"


@pytest.mark.parametrize(
    ("stage", "state", "started_at", "again"),
    [
        ("infer", JobState.PREEMPTED, 0.0, True),
        ("infer", JobState.TIMEOUT, 0.0, False),
        ("infer", JobState.CANCELLED, 0.0, False),
        # Inference, which had waited for a node, ended at 9000 s: what was left for scoring?
        ("score", JobState.TIMEOUT, 5000.0, True),
        ("score", JobState.TIMEOUT, 6000.0, False),
        ("score", JobState.FAILED, 0.0, False),
    ],
)
def test_scoring_that_has_waited_for_inference_too_long_is_submitted_again(
    stage: str, state: JobState, started_at: float, again: bool
) -> None:
    status = JobStatus(state, started_at=started_at, ended_at=started_at + 7200.0)
    assert gave_way(stage, status, inferred_at=9000.0, limit_s=3600.0) is again


def on_cluster(
    run_dir: Path, cluster: _Cluster, launcher: dict[str, object], **evaluate: object
) -> Work:
    values = {"run_dir": run_dir, "launcher": launcher, "evaluate": evaluate}
    return work_on(RunConfig.model_validate(values), 5, cluster, lambda _: None)


def test_on_slurm_inference_takes_the_nodes_that_are_free_and_scoring_starts_after_it(
    tmp_path: Path,
) -> None:
    cluster = _Cluster(*[JobState.COMPLETED] * 3)
    work = on_cluster(tmp_path, cluster, {"kind": "slurm"}, nodes=4, cuda_devices=[0, 1], scorers=3)
    run_stages(work, ["plan", "infer", "score"], threading.Event())
    plan, infer, score = cluster.specs
    assert (plan.gpus_per_node, plan.more_nodes, plan.cpu_only) == (0, 0, True)
    assert plan.argv[2] == "tasks.evaluate.make_plan" and plan.dependency is None
    assert (infer.nodes, infer.more_nodes, infer.each_node) == (1, 3, True)
    assert (infer.gpus_per_node, infer.processes_per_node) == (2, 2)
    assert infer.dependency == "afterany:1"
    assert (score.nodes, score.more_nodes, score.each_node) == (1, 0, False)
    assert (score.gpus_per_node, score.processes_per_node, score.cpu_only) == (0, 3, True)
    assert score.dependency == "after:2"


def test_on_one_machine_both_start_at_once(tmp_path: Path) -> None:
    cluster = _Cluster(JobState.COMPLETED, JobState.COMPLETED)
    run_stages(
        on_cluster(tmp_path, cluster, {"kind": "local"}), ["infer", "score"], threading.Event()
    )
    infer, score = cluster.specs
    assert infer.environment[SLOTS_VARIABLE] == score.environment[SLOTS_VARIABLE]
    assert score.dependency is None


@pytest.mark.soak
@pytest.mark.slow
def test_the_next_checkpoint_is_begun_at_the_end_of_the_one_before(
    run: RunDir, tiny_model: Path
) -> None:
    """Its workers load it when their devices are free; its own turn finds the job."""
    write_heldout(run.heldout_dir, count=250)
    settings = {"workers": 2, "bootstrap_iterations": 0}
    config = RunConfig.model_validate({"run_dir": run.path, "evaluate": settings})
    first, second = (run.evaluation(step) for step in (5, 10))
    for evaluation in (first, second):
        shutil.copytree(tiny_model, evaluation.model_dir)
        write_record(
            evaluation.export_path, ExportRecord(checkpoint="", started_at=1.0, ended_at=2.0)
        )
    steps = iter([10])
    ahead = Ahead(config, lambda: next(steps, None), pytest.fail)
    with disable_run_logger():
        scores = evaluate_checkpoint.fn(config, 5, None, ahead.beside(5))
        begun = LocalLauncher().find(second.job_dir("infer-1"))
        assert scores is not None
        assert begun is not None and begun.submitted_at < scores.ended_at
        assert ahead.take() == 10
        assert evaluate_checkpoint.fn(config, 10) is not None
    ahead.close()
    assert LocalLauncher().find(second.job_dir("infer-2")) is None
    by_worker: dict[str, float] = {}
    for time_of in read_times(first):
        if time_of.kind == "shard":
            by_worker[time_of.worker] = max(by_worker.get(time_of.worker, 0.0), time_of.ended_at)
    loads = [t for t in read_times(second) if t.kind == "load"]
    assert loads
    assert all(load.started_at >= by_worker.get(load.worker, 0.0) for load in loads)


def test_what_was_begun_and_has_no_turn_any_more_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = _Cluster(JobState.RUNNING)
    cancelled: list[Path] = []
    monkeypatch.setattr(cluster, "cancel", lambda handle, **_: cancelled.append(handle.job_dir))
    monkeypatch.setattr("tasks.evaluate.task_ahead.make_launcher", lambda _: cluster)
    monkeypatch.setattr(Ahead, "_is_near_its_end", lambda _: True)
    ahead = Ahead(RunConfig(run_dir=tmp_path), lambda: 10, pytest.fail)
    ahead.beside(5)()
    assert [spec.job_dir.name for spec in cluster.specs] == ["export-1"]
    ahead.close()
    assert [job_dir.name for job_dir in cancelled] == ["export-1"]
