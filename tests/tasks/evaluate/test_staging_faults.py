"""Staging ends, and leaves nothing behind: sources that change, copies that are broken off or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from evaluation_setup import REPOSITORY, prepare_evaluation

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir, RunDir, step_folder_name
from configs.schema import EvaluateConfig
from tasks.evaluate import staging
from tasks.evaluate.memory import available_memory_bytes
from tasks.evaluate.model_folder import model_identity
from tasks.evaluate.stager import Stager
from tasks.evaluate.staging import SHARED_MEMORY, Staged, staged

MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(24 * MIB))
    return folder


def own_copies() -> Path:
    return SHARED_MEMORY / f"overland-{os.getuid()}" / "models"


def test_a_source_that_changes_is_refused_after_one_copy(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "memory"
    base.mkdir()
    copied: list[str] = []
    copy_file = staging._copy_file

    def growing(source: Path, target: Path, pace: staging._Pace) -> str:
        copied.append(source.name)
        digest = copy_file(source, target, pace)
        with open(model / "model.safetensors", "ab") as file:
            file.write(b"more")
        return digest

    monkeypatch.setattr(staging, "_copy_file", growing)
    with (
        pytest.raises(EvaluationError, match=r"changes while it is copied \(model.safetensors\)"),
        staged(model, "a" * 64, places=[("memory", base)]),
    ):
        pass
    assert copied == ["config.json", "model.safetensors"]
    assert list(base.glob("overland-*/models/*")) == []


def test_a_log_that_grows_beside_the_model_is_no_part_of_it(tmp_path: Path, model: Path) -> None:
    evaluation = EvaluationDir(tmp_path / "evaluation", step=0)
    evaluation.path.mkdir()
    evaluation.model_dir.symlink_to(model)
    before = model_identity(evaluation)
    (model / "trainer_log.jsonl").write_text("{}\n")
    (model / "train.log").write_text("step 1\n")
    assert model_identity(evaluation) == before
    (model / "added_tokens.json").write_text("{}")
    assert model_identity(evaluation) != before


def test_a_copy_that_others_spoil_is_not_made_for_ever(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "memory"
    base.mkdir()
    copies: list[Path] = []
    copy = staging._copy

    def spoiled(source: Path, folder: Path, place: str, rate: float | None) -> None:
        copies.append(folder)
        assert len(copies) < 10
        copy(source, folder, place, rate)
        os.truncate(folder / "model.safetensors", 5)

    monkeypatch.setattr(staging, "_copy", spoiled)
    with (
        pytest.raises(EvaluationError, match="does not stay whole"),
        staged(model, "a" * 64, places=[("memory", base)]),
    ):
        pass
    assert len(copies) == 2


@pytest.mark.parametrize("how", ["SIGTERM", "input"])
def test_a_precursor_that_is_stopped_in_mid_copy_leaves_nothing(model: Path, how: str) -> None:
    """At this rate the copy would take hours."""
    name = f"{how:x<32}"
    argv = [sys.executable, "-m", "tasks.evaluate.precursor", str(model), name, "--mib-per-s=0.01"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=REPOSITORY, stdin=pipe, stdout=pipe) as precursor:
        assert precursor.stdin is not None
        try:
            while not (own_copies() / name / "config.json").is_file():
                assert precursor.poll() is None
                time.sleep(0.02)
            if how == "SIGTERM":
                precursor.send_signal(signal.SIGTERM)
            else:
                precursor.stdin.close()
            assert precursor.wait(timeout=60) == (143 if how == "SIGTERM" else 0)
        finally:
            precursor.kill()
    assert list(own_copies().glob(f"{name}*")) == []


def test_a_signal_that_another_thread_takes_does_not_wait_for_the_pace() -> None:
    def leave(number: int, frame: object) -> None:
        raise SystemExit(number)

    def take() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, leave)
    begun, taker = time.monotonic(), threading.Timer(0.2, take)
    taker.start()
    try:
        with pytest.raises(SystemExit):
            staging._Pace(mib_per_s=1.0).after(120 << 20)  # due in two minutes
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert time.monotonic() - begun < 60


def test_a_limit_of_the_control_group_counts_and_page_cache_does_not(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    job = cgroups / "slurm" / "job_1"
    for folder in (proc / "self", job):
        folder.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 64 kB\nMemAvailable: 1048576 kB\n")
    assert available_memory_bytes(proc, cgroups) == 1 << 30  # a kernel without control groups
    (proc / "self" / "cgroup").write_text("0::/slurm/job_1\n")
    for group, limit in {job: "max", job.parent: str(500 * MIB)}.items():
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{300 * MIB}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {50 * MIB}\n")
    assert available_memory_bytes(proc, cgroups) == 250 * MIB
    (job.parent / "memory.max").write_text("max\n")
    assert available_memory_bytes(proc, cgroups) == 1 << 30


def kill_when_it_copies(stager: Stager, name: str) -> None:
    while not list(own_copies().glob(f"{name}/config.json")):
        assert stager.look() is None
        time.sleep(0.02)
    precursor = stager._precursor
    assert precursor is not None
    precursor.kill()
    while stager._precursor is precursor:
        assert stager.look() is None
        time.sleep(0.02)


def test_where_a_precursor_was_killed_the_next_one_does_not_copy(
    tmp_path: Path, model: Path
) -> None:
    """And its end, while another one copies, holds nobody up."""
    evaluation = EvaluationDir(tmp_path / step_folder_name(1), step=1)
    evaluation.path.mkdir()
    evaluation.model_dir.symlink_to(model)
    stager = Stager(evaluation, EvaluateConfig(stage_mib_per_s=0.01))
    stager.start()
    try:
        kill_when_it_copies(stager, model_identity(evaluation)[:32])
        # The disk holds the model already, so a copy there would gain nothing.
        assert stager.wait(timeout_s=100) == Staged(path=str(evaluation.model_dir), place="source")
    finally:
        stager.close()
    assert not list(own_copies().glob(f"{model_identity(evaluation)[:32]}*"))


def test_staging_that_takes_too_long_is_given_up(run: RunDir, tiny_model: Path) -> None:
    evaluation = prepare_evaluation(run, tiny_model, tasks=["heldout_cloze"])
    stager = Stager(evaluation, EvaluateConfig(stage_mib_per_s=0.0001))
    stager.start()
    try:
        with pytest.raises(EvaluationError, match="was not staged within 0 s"):
            stager.wait(timeout_s=0.0)
        with pytest.raises(EvaluationError, match="not staged"):
            stager.wait(timeout_s=0.1)
    finally:
        stager.close()
    assert stager._precursor is not None
    assert stager._precursor.returncode == 0  # it broke off by itself
