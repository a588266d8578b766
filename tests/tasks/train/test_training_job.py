"""Real torchrun jobs on gloo: interrupted, resumed, under other sizes, with faults."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training_jobs import STEPS, JobResult, run_training_job

from configs.errors import CheckpointError
from configs.events import CheckpointEvent, EndEvent, FaultEvent, StartEvent
from configs.rundir import COMMIT_MARKER_NAME, RunDir
from tasks.train.checkpoint_files import check_files
from tasks.train.checkpoint_load import check_contents, require_same_optimizer

pytestmark = pytest.mark.slow

NewRun = Callable[[], RunDir]
LAYOUT_NOISE = 1e-4


def start_of(job: JobResult) -> StartEvent:
    return next(e for e in job.attempt.events() if isinstance(e, StartEvent))


def saves_of(job: JobResult) -> dict[int, CheckpointEvent]:
    return {e.step: e for e in job.attempt.events() if isinstance(e, CheckpointEvent)}


def run_of(job: JobResult) -> RunDir:
    return RunDir(job.attempt.path.parents[1])


@pytest.fixture(scope="session")
def uninterrupted(new_run: NewRun) -> JobResult:
    """A whole run, whose first checkpoint meets a full disk on rank 1."""
    fault = {"kind": "full_disk", "step": 3, "rank": 1}
    return run_training_job(new_run(), 1, {"faults": [fault]})


@pytest.fixture(scope="session")
def killed(new_run: NewRun) -> JobResult:
    """The same run with rank 1 killed before step 5."""
    fault = {"kind": "kill", "step": 5, "rank": 1}
    return run_training_job(new_run(), 1, {"faults": [fault]})


@pytest.fixture
def copy_of(new_run: NewRun) -> Callable[[JobResult], RunDir]:
    def copy(job: JobResult) -> RunDir:
        run = new_run()
        shutil.copytree(run_of(job).checkpoints_dir, run.checkpoints_dir)
        return run

    return copy


def test_a_whole_run_reports_every_step_and_learns(uninterrupted: JobResult) -> None:
    assert uninterrupted.exit_code == 0, uninterrupted.explain()
    steps = uninterrupted.steps()
    assert list(steps) == list(range(1, STEPS + 1))
    assert steps[STEPS].loss < steps[1].loss - 0.5
    assert steps[1].learning_rate == pytest.approx(5e-3)
    assert steps[STEPS].learning_rate == pytest.approx(1e-4)
    assert list(uninterrupted.validations()) == [4, STEPS]
    start = start_of(uninterrupted)
    assert (start.step, start.checkpoint, start.world_size, start.precision) == (0, None, 2, "fp32")
    assert isinstance(uninterrupted.attempt.events()[-1], EndEvent)
    assert f"step {STEPS}/{STEPS} loss" in uninterrupted.log(0)
    assert "loss" not in uninterrupted.log(1)


def test_a_full_disk_costs_one_checkpoint_and_not_the_run(uninterrupted: JobResult) -> None:
    saves = saves_of(uninterrupted)
    assert {step: save.outcome for step, save in saves.items()} == {
        3: "failed",
        6: "committed",
        STEPS: "committed",
    }
    assert "rank 1" in saves[3].error and "No space left on device" in saves[3].error
    run = run_of(uninterrupted)
    folders = sorted(f.name for f in run.checkpoints_dir.iterdir() if f.is_dir())
    assert folders == ["step_00000006", "step_00000008"]
    faults = [e for e in uninterrupted.attempt.events() if isinstance(e, FaultEvent)]
    assert [(fault.kind, fault.rank, fault.step) for fault in faults] == [("full_disk", 1, 3)]
    assert "No space left on device" in uninterrupted.log(1)


@pytest.mark.soak
def test_training_goes_on_when_no_event_can_be_written(new_run: NewRun) -> None:
    run, train = new_run(), {"steps": 2, "warmup_steps": 1}
    job = run_training_job(run, 1, {"train": train}, events_to=Path("/dev/full"))
    assert job.exit_code == 0, job.explain()
    assert [c.step for c in run.committed_checkpoints()] == [2]
    assert "the event 'step' was dropped: [Errno 28] No space left on device" in job.log(0)


def test_the_marker_describes_the_checkpoint(uninterrupted: JobResult) -> None:
    checkpoint = run_of(uninterrupted).checkpoint(6)
    marker = checkpoint.marker()
    assert marker is not None
    names = {p.name for p in checkpoint.path.iterdir()} - {COMMIT_MARKER_NAME}
    assert set(marker.files) == names
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "common.pt"} <= names
    assert (marker.step, marker.consumed_samples, marker.attempt) == (6, 48, 1)
    assert marker.parallel == {"tensor": 1, "pipeline": 1, "data": 2, "distributed_optimizer": 0}
    assert marker.size_bytes == sum((checkpoint.path / name).stat().st_size for name in names)


def test_a_killed_rank_ends_the_job(killed: JobResult) -> None:
    assert killed.exit_code != 0
    assert max(killed.steps()) == 4
    assert [c.step for c in run_of(killed).committed_checkpoints()] == [3]
    assert "SIGKILL" in killed.output


def test_resuming_continues_bit_for_bit(uninterrupted: JobResult, killed: JobResult) -> None:
    resumed = run_training_job(run_of(killed), 2, {})
    assert resumed.exit_code == 0, resumed.explain()
    assert start_of(resumed).checkpoint == "step_00000003"
    assert list(resumed.steps()) == [4, 5, 6, 7, 8]
    expected = uninterrupted.steps()
    for job in (killed, resumed):
        for number, step in job.steps().items():
            assert step.loss == expected[number].loss
            assert step.grad_norm == expected[number].grad_norm
            assert step.learning_rate == expected[number].learning_rate
    assert resumed.validations() == uninterrupted.validations()


@pytest.mark.soak
def test_a_checkpoint_resumes_under_tensor_parallelism(
    uninterrupted: JobResult, killed: JobResult, copy_of: Callable[[JobResult], RunDir]
) -> None:
    run = copy_of(killed)
    for later in (4, 5, 6, 7, 8):
        shutil.rmtree(run.checkpoint(later).path, ignore_errors=True)
    resumed = run_training_job(run, 2, {"parallel": {"data": 1, "tensor": 2}})
    assert resumed.exit_code == 0, resumed.explain()
    assert start_of(resumed).step == 3
    assert_same_curve(resumed, uninterrupted)


def test_a_corrupt_checkpoint_is_passed_over_and_pipeline_stages_resume(
    uninterrupted: JobResult, copy_of: Callable[[JobResult], RunDir]
) -> None:
    run = copy_of(uninterrupted)
    flip_a_byte(run.checkpoint(8).path / "__1_0.distcp")
    run.checkpoint(7).path.mkdir()
    resumed = run_training_job(run, 2, {"parallel": {"data": 1, "pipeline": 2}})
    assert resumed.exit_code == 0, resumed.explain()
    start = start_of(resumed)
    assert start.checkpoint == "step_00000006"
    assert "__1_0.distcp is corrupt" in start.skipped_checkpoints["step_00000008"]
    assert "never committed" in start.skipped_checkpoints["step_00000007"]
    assert "step_00000008 was passed over" in resumed.log(0)
    assert_same_curve(resumed, uninterrupted)
    marker = run.checkpoint(8).marker()
    assert marker is not None and marker.attempt == 2, "the corrupt checkpoint is replaced"


def test_an_exception_leaves_its_traceback_and_sharded_optimizers_resume(
    uninterrupted: JobResult, new_run: NewRun
) -> None:
    run, sharded = new_run(), {"data": 2, "distributed_optimizer": True}
    fault = {
        "kind": "exception",
        "step": 5,
        "rank": 1,
        "exception": "torch.OutOfMemoryError",
        "message": "broken on purpose",
    }
    failed = run_training_job(run, 1, {"parallel": sharded, "faults": [fault]})
    assert failed.exit_code != 0
    assert "Traceback (most recent call last)" in failed.log(1)
    assert "torch.OutOfMemoryError: broken on purpose" in failed.log(1)
    resumed = run_training_job(run, 2, {"parallel": sharded, "faults": [fault]})
    assert resumed.exit_code == 0, resumed.explain()
    assert start_of(resumed).step == 3
    assert_same_curve(resumed, uninterrupted)


def test_only_whole_and_harmless_checkpoints_are_taken(
    uninterrupted: JobResult, copy_of: Callable[[JobResult], RunDir]
) -> None:
    checkpoint = copy_of(uninterrupted).checkpoint(8)
    folder, marker = checkpoint.path, checkpoint.marker()
    assert marker is not None
    check_files(folder, marker, marker.files)
    check_contents(folder, marker)

    without_index = {n: f for n, f in marker.files.items() if n != ".metadata"}
    with pytest.raises(CheckpointError, match=r"\.metadata is not among"):
        check_contents(folder, marker.model_copy(update={"files": without_index}))

    (folder / ".metadata").write_bytes(b"\x80\x04\x8c\x05posix\x8c\x06system\x93.")
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        check_contents(folder, marker)
    with pytest.raises(CheckpointError, match="bytes instead of"):
        check_files(folder, marker, [".metadata"])
    (folder / "common.pt").unlink()
    with pytest.raises(CheckpointError, match=r"common\.pt is missing"):
        check_files(folder, marker, ["common.pt"])


@pytest.mark.soak
def test_a_run_is_not_done_without_its_last_checkpoint(new_run: NewRun) -> None:
    run, train = new_run(), {"steps": 4, "warmup_steps": 1}
    fault = {"kind": "full_disk", "step": 4, "rank": 1}
    failed = run_training_job(run, 1, {"train": train, "faults": [fault]})
    assert failed.exit_code != 0
    assert "the checkpoint of the last step, 4, could not be saved" in failed.log(0)
    assert saves_of(failed)[4].outcome == "failed"
    resumed = run_training_job(run, 2, {"train": train})
    assert resumed.exit_code == 0, resumed.explain()
    assert list(resumed.steps()) == [4]
    assert [c.step for c in run.committed_checkpoints()] == [3, 4]


def test_another_models_checkpoint_is_refused_by_what_differs(
    uninterrupted: JobResult, copy_of: Callable[[JobResult], RunDir]
) -> None:
    run = copy_of(uninterrupted)
    refused = run_training_job(run, 2, {"model": {"ffn_hidden_size": 96}, "parallel": {"data": 1}})
    assert refused.exit_code != 0
    assert "CheckpointError" in refused.log(0)
    assert "model.ffn_hidden_size is 64 there and 96 here" in refused.log(0)
    assert run.checkpoint(8).marker() is not None, "nothing is removed"


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"precision": "bf16"}, r"train\.precision = fp32"),
        pytest.param(
            {"parallel": {"distributed_optimizer": 1}},
            r"distributed_optimizer = false",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_an_optimizer_of_another_kind_is_refused(
    uninterrupted: JobResult, change: dict[str, Any], setting: str
) -> None:
    checkpoint = run_of(uninterrupted).checkpoint(8)
    marker = checkpoint.marker()
    assert marker is not None
    require_same_optimizer(checkpoint.path, marker, marker)
    with pytest.raises(CheckpointError, match=setting):
        require_same_optimizer(checkpoint.path, marker, marker.model_copy(update=change))


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def assert_same_curve(job: JobResult, expected: JobResult) -> None:
    """The same losses, but for the rounding that another order of sums brings."""
    steps = job.steps()
    assert max(steps) == STEPS
    for number, step in steps.items():
        assert step.loss == pytest.approx(expected.steps()[number].loss, abs=LAYOUT_NOISE)
        assert step.grad_norm == pytest.approx(expected.steps()[number].grad_norm, abs=1e-3)
    for number, loss in job.validations().items():
        assert loss == pytest.approx(expected.validations()[number], abs=LAYOUT_NOISE)
