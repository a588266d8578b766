"""What a server refuses, cannot ever start, or answers in a way that nobody can use."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from slurm_server import FakeSlurm, job, make, node, spec

from configs.errors import LaunchError
from infra.launch.base import JobState
from infra.launch.slurm_errors import SlurmError, SlurmTokenError
from infra.launch.slurm_record import SlurmFiles, SlurmRecord, Submission, read, write

pytestmark = pytest.mark.usefixtures("short_pauses")


def test_a_hopeless_job_is_ended_and_does_not_count(server: FakeSlurm, tmp_path: Path) -> None:
    def hook(request: httpx.Request) -> httpx.Response | None:
        for known in server.jobs:
            known["state_reason"] = "QOSMaxNodePerJobLimit"
        return None

    server.hook = hook
    with pytest.raises(LaunchError, match="QOSMaxNodePerJobLimit"):
        make(server).submit(spec(tmp_path))
    assert server.states() == ["CANCELLED"]
    assert make(server).find(spec(tmp_path).job_dir) is None
    server.hook = lambda _: None
    assert make(server).submit(spec(tmp_path)).job_id == "2"


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("PartitionTimeLimit", JobState.FAILED),
        ("PartitionNodeLimit", JobState.FAILED),
        ("AssocMaxWallDurationPerJobLimit", JobState.FAILED),
        ("AssocMaxNodePerJobLimit", JobState.FAILED),
        ("QOSMinGRES", JobState.FAILED),
        ("PartitionDown", JobState.PENDING),
        ("PartitionConfig", JobState.FAILED),
        ("QOSMaxJobsPerUserLimit", JobState.PENDING),
        ("QOSGrpNodeLimit", JobState.PENDING),
        ("Resources", JobState.PENDING),
    ],
)
def test_an_adopted_job_that_can_never_start_is_ended(
    server: FakeSlurm, tmp_path: Path, reason: str, state: JobState
) -> None:
    files = SlurmFiles(spec(tmp_path).job_dir)
    files.job_dir.mkdir()
    submission = Submission(key=spec(tmp_path).key, mark="m", begun_at=0.0)
    write(files.submission, submission)
    server.jobs.append(job(1, submission.comment, state_reason=reason))
    launcher = make(server)
    handle = launcher.find(files.job_dir)
    assert handle is not None
    status = launcher.poll(handle)
    assert (status.state, reason in status.reason) == (state, True) or reason == "Resources"
    assert server.states() == ["CANCELLED" if state.final else "PENDING"]


@pytest.mark.parametrize("reason", ["PartitionNodeLimit", "PartitionConfig"])
def test_a_node_limit_may_be_nodes_that_come_back(
    server: FakeSlurm, tmp_path: Path, reason: str
) -> None:
    launcher = make(server)
    handle = launcher.submit(spec(tmp_path))
    server.nodes = [node("n1"), node("n2", "DRAIN")]
    server.jobs[0]["state_reason"] = reason
    assert launcher.poll(handle).state is JobState.PENDING
    # Nodes that it does not run on anyway do not count.
    server.jobs[0]["partition"] = "big,main"
    server.nodes[1]["partitions"] = ["other"]
    assert launcher.poll(handle).state is JobState.FAILED


def test_the_first_contact_fails_fast_and_later_ones_wait(
    server: FakeSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from infra.launch import slurm_contact

    monkeypatch.setattr(slurm_contact, "FIRST_CONTACT_S", 0.2)
    caplog.set_level("INFO")

    def away(request: httpx.Request) -> httpx.Response | None:
        raise httpx.ConnectError("refused")

    server.hook = away
    wanted = spec(tmp_path / "attempts" / "001")
    with pytest.raises(
        LaunchError, match=r"for 0\.2 s .*refused.*no job was submitted: is launcher"
    ):
        make(server).submit(wanted)
    assert "slurm:1 cannot be reached: refused; asked again in" in caplog.text
    assert not SlurmFiles(wanted.job_dir).submission.exists()
    # Once a job of the run is on record, its flow has patience.
    server.hook = lambda _: None
    make(server).submit(wanted)
    server.hook = away
    with pytest.raises(LaunchError, match=r"for 2 s .*jobs go on without us"):
        make(server).submit(spec(tmp_path / "attempts" / "002", "run/attempts/002"))


def test_what_cannot_be_written_is_said_in_a_sentence(server: FakeSlurm, tmp_path: Path) -> None:
    files = SlurmFiles(spec(tmp_path).job_dir)
    files.lock.mkdir(parents=True)
    with pytest.raises(LaunchError, match="cannot be written"):
        make(server).submit(spec(tmp_path))


def test_an_answer_without_what_is_expected_is_said_so(server: FakeSlurm, tmp_path: Path) -> None:
    launcher = make(server)
    handle = launcher.submit(spec(tmp_path))
    del server.jobs[0]["job_state"]
    with pytest.raises(SlurmError, match=r"v0\.0\.42/jobs/ answers.*job_state"):
        launcher.poll(handle)


def test_a_page_in_the_place_of_an_answer_is_no_answer(server: FakeSlurm, tmp_path: Path) -> None:
    """A proxy's page says nothing about jobs."""
    launcher = make(server)
    handle = launcher.submit(spec(tmp_path))
    server.jobs[0]["job_state"] = ["RUNNING"]
    assert launcher.poll(handle).state is JobState.RUNNING
    for text in ("<html>maintenance</html>", "[]", "{}"):
        page = httpx.Response(200, text=text)
        server.hook = lambda request, page=page: page
        status = launcher.poll(handle)
        assert (status.state, status.stale) == (JobState.RUNNING, True)
    server.hook = lambda _: None
    status = launcher.poll(handle)
    assert (status.state, status.stale) == (JobState.RUNNING, False)
    record = read(SlurmFiles(handle.job_dir).record, SlurmRecord)
    assert record is not None
    assert record.ended is None


def test_a_refused_token_is_no_refused_job(server: FakeSlurm, tmp_path: Path) -> None:
    def hook(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(401, text="no") if request.method == "POST" else None

    server.hook = hook
    with pytest.raises(SlurmTokenError):
        make(server).submit(spec(tmp_path))
    assert not SlurmFiles(spec(tmp_path).job_dir).submission.exists()
