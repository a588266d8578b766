"""A job is submitted once, whatever becomes of its submitter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import sleeper
from job_helpers import log_text, python_job, wait_for_end

from infra.launch.base import JobState, Launcher
from infra.launch.slurm_record import SlurmFiles, SlurmRecord, claim, read, write
from infra.slurm.daemons import ClusterError

pytestmark = [pytest.mark.slow, pytest.mark.soak]


def test_a_job_whose_submitter_died_before_recording_it_is_found(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    spec = sleeper(tmp_path, 1.0)
    first = launcher.submit(spec)
    SlurmFiles(spec.job_dir).record.unlink()
    assert launcher.find(spec.job_dir) is not None
    SlurmFiles(spec.job_dir).record.unlink()
    SlurmFiles(spec.job_dir).claim.unlink(missing_ok=True)
    again = launcher.submit(spec)
    assert again.job_id == first.job_id
    assert wait_for_end(launcher, again).state is JobState.COMPLETED


def test_a_late_second_job_leaves_the_folder_alone(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    """As when a dead submitter's request arrives after another one has submitted anew."""
    spec = python_job(tmp_path / "job", "print('ran')")
    handle = launcher.submit(spec)
    wait_for_end(launcher, handle)
    script = tmp_path / "script.sh"
    job_id = handle.job_id
    script.write_text(slurm_site.cluster.command("scontrol", "write", "batch_script", job_id, "-"))
    out = tmp_path / "second.log"
    with pytest.raises(ClusterError, match="ended with 90"):
        slurm_site.cluster.command("sbatch", "--wait", f"--output={out}", str(script))
    assert f"belongs to job {job_id}: nothing is done" in out.read_text()
    assert log_text(launcher, handle) == "ran\n"
    assert launcher.find(spec.job_dir) == handle


def test_a_folder_made_anew_does_not_find_the_old_job(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    import shutil

    spec = python_job(tmp_path / "job", "")
    first = launcher.submit(spec)
    wait_for_end(launcher, first)
    shutil.rmtree(spec.job_dir)
    assert launcher.find(spec.job_dir) is None
    second = launcher.submit(spec)
    assert second.job_id != first.job_id
    assert wait_for_end(launcher, second).state is JobState.COMPLETED


def test_a_number_that_was_used_again_is_another_job(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    spec = sleeper(tmp_path)
    other = launcher.submit(spec)
    files = SlurmFiles(tmp_path / "old")
    files.job_dir.mkdir()
    record = read(SlurmFiles(spec.job_dir).record, SlurmRecord)
    assert record is not None
    old = record.model_copy(update={"key": "old", "comment": "overland abc old"})
    write(files.record, old)
    status = wait_for_end(launcher, old.handle(files.job_dir))
    assert status.state is JobState.NODE_FAIL
    assert "does not know the job any more" in status.reason
    assert launcher.poll(other).state in (JobState.PENDING, JobState.RUNNING)
    launcher.cancel(other, grace_s=0.0)


def test_the_environment_of_a_surrounding_job_is_left_out(
    launcher: Launcher, slurm_site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JWT", "a-secret")
    monkeypatch.setenv("SLURM_JOB_NAME", "outer")
    monkeypatch.setenv("FROM_OUTSIDE", "two\nlines and 'quotes'")
    code = "import os, json; print(json.dumps([os.environ.get(n) for n in ('SLURM_JWT', 'SLURM_JOB_NAME', 'FROM_OUTSIDE')]))"
    handle = launcher.submit(python_job(tmp_path / "job", code))
    wait_for_end(launcher, handle)
    assert json.loads(log_text(launcher, handle)) == [None, "test", "two\nlines and 'quotes'"]


def test_a_claim_is_for_one(tmp_path: Path) -> None:
    files = SlurmFiles(tmp_path)
    assert claim(files, 7) == 7
    assert claim(files, 8) == 7
    assert claim(files, 7) == 7
    assert [p.name for p in tmp_path.iterdir()] == ["job.claim"]
