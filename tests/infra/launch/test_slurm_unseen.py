"""Jobs of which nothing is seen on the storage here, and jobs that were put back into the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slurm_server import FakeSlurm, job, make, node, spec

from infra.launch import slurm
from infra.launch.base import JobState, JobStatus
from infra.launch.slurm_dialects import OldDialect
from infra.launch.slurm_record import NodeRecord, SlurmFiles, write
from infra.launch.slurm_status import requeued

CANNOT_WRITE = {"exit_code": {"return_code": 15, "signal": {"id": 53}}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.setattr(slurm, "_LATE_S", 0.1)
    return FakeSlurm()


def ended(server: FakeSlurm, folder: Path, state: str = "FAILED", **more: Any) -> JobStatus:
    """What becomes of a job that Slurm ends this way."""
    launcher = make(server)
    handle = launcher.submit(spec(folder))
    server.job(int(handle.job_id)).update(job_state=[state], nodes="n1", **more)
    return launcher.poll(handle)


def wrote(folder: Path, state: str, name: str = "n1") -> NodeRecord:
    record = NodeRecord(
        job_id=1, node=name, rank=0, started_at=1.0, state=JobState(state), ended_at=2.0
    )
    write(SlurmFiles(folder).node(name), record)
    return record


# --- unseen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "more"),
    [
        # As Slurm 22.05 and 24.11 say that the output's folder is not there.
        ("FAILED", {"state_reason": "JobLaunchFailure", **CANNOT_WRITE}),
        ("FAILED", {"state_reason": "RaisedSignal", **CANNOT_WRITE}),
        # The folder is there, on the node's own disk.
        ("FAILED", {"state_reason": "NonZeroExitCode"}),
        ("COMPLETED", {"state_reason": "None"}),
    ],
)
def test_a_job_that_writes_elsewhere_wants_shared_storage(
    server: FakeSlurm, tmp_path: Path, state: str, more: dict[str, Any]
) -> None:
    status = ended(server, tmp_path / "001", state, **more)
    assert status.state is JobState.FAILED
    assert status.reason.startswith("NothingSeen: nothing that the job wrote is seen here")
    assert "on storage that all nodes share" in status.reason


def test_a_node_that_could_not_start_a_job_is_that_nodes_fault(
    server: FakeSlurm, tmp_path: Path
) -> None:
    status = ended(server, tmp_path / "001", state_reason="JobLaunchFailure")
    assert (status.state, status.nodes) == (JobState.NODE_FAIL, ("n1",))


def test_where_earlier_jobs_were_seen_a_node_has_lost_the_storage(
    server: FakeSlurm, tmp_path: Path
) -> None:
    wrote(tmp_path / "001" / "job", "FAILED")
    status = ended(server, tmp_path / "002", state_reason="JobLaunchFailure", **CANNOT_WRITE)
    assert (status.state, status.nodes) == (JobState.NODE_FAIL, ("n1",))
    assert "may have lost the storage" in status.reason


def test_a_job_with_output_has_failed_by_itself(server: FakeSlurm, tmp_path: Path) -> None:
    files = SlurmFiles(spec(tmp_path).job_dir)
    files.job_dir.mkdir()
    files.log.write_text("error: no such module\n")
    status = ended(server, tmp_path, state_reason="NonZeroExitCode")
    assert (status.state, status.reason) == (JobState.FAILED, "")


# --- put back into the queue ----------------------------------------------------------------------


def old_job(state: str, **more: Any) -> dict[str, Any]:
    """As v0.0.38 gives it."""
    known = {"state_reason": "None", "nodes": "", "exit_code": 0, "restart_cnt": 1}
    return {"job_id": 1, "comment": "c", "job_state": state, "preempt_time": 0} | known | more


def test_v38_tells_of_a_preemption_while_the_job_is_being_ended() -> None:
    dialect = OldDialect()
    ending = dialect.job(old_job("COMPLETING", nodes="n1", preempt_time=1796156106))
    assert requeued(ending).state is JobState.PREEMPTED
    assert "it was preempted" in requeued(ending).reason
    failed = dialect.job(old_job("COMPLETING", nodes="n1"))
    assert requeued(failed).state is JobState.NODE_FAIL


@pytest.mark.parametrize(
    ("records", "flags", "state"),
    [
        (["CANCELLED"], (), "PREEMPTED"),
        # Its node is gone, or had no time to leave word, or its program ended by itself.
        (["CANCELLED"], ("NOT_RESPONDING",), "NODE_FAIL"),
        (["CANCELLED", "RUNNING"], (), "NODE_FAIL"),
        (["FAILED"], (), "NODE_FAIL"),
        ([], (), "NODE_FAIL"),
    ],
)
def test_later_the_nodes_know_whether_it_was_told_to_end(
    server: FakeSlurm, tmp_path: Path, records: list[str], flags: tuple[str, ...], state: str
) -> None:
    server.nodes = [node("n1", *flags), node("n2")]
    launcher = make(server)
    handle = launcher.submit(spec(tmp_path))
    for number, ended_as in enumerate(records, 1):
        wrote(handle.job_dir, ended_as, f"n{number}")
    known = server.job(1)
    known.update(job(1, known["comment"], "PENDING", state_reason="BeginTime", restart_cnt=1))
    assert launcher.poll(handle).state is JobState(state)
    assert server.states() == ["CANCELLED"], "the next attempt is another job"
