"""One job for each folder, whatever happens to the request and to who sent it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from slurm_server import FakeSlurm, job, make, spec

from configs.errors import LaunchError
from infra.launch import slurm_once
from infra.launch.base import JobState
from infra.launch.slurm_record import SlurmFiles, Submission, claim, read, write

pytestmark = pytest.mark.usefixtures("short_pauses")


class Killed(BaseException):
    """The submitter dies."""


def mark_of(files: SlurmFiles) -> str:
    submission = read(files.submission, Submission)
    assert submission is not None
    return submission.mark


@pytest.mark.parametrize("claims", ["late", "new", "before the new one is sent"])
def test_a_dead_submitters_request_arrives_after_the_next_ones(
    server: FakeSlurm, tmp_path: Path, claims: str
) -> None:
    late: list[httpx.Request] = []

    def die(request: httpx.Request) -> httpx.Response | None:
        if request.method != "POST":
            return None
        late.append(request)
        raise Killed

    server.hook = die
    files = SlurmFiles(spec(tmp_path).job_dir)
    with pytest.raises(Killed):
        make(server).submit(spec(tmp_path))
    mark = mark_of(files)

    def arrive(request: httpx.Request) -> httpx.Response | None:
        if request.method != "POST":
            return None
        if claims == "new":
            return None
        server.hook = lambda _: None
        late_id = server.accept(late[0])
        claim(files, late_id)
        server.job(late_id)["job_state"] = ["RUNNING"]
        return None

    server.hook = arrive
    if claims == "before the new one is sent":
        server.jobs.append(job(1, json.loads(late[0].content)["job"]["comment"], "RUNNING"))
        claim(files, 1)
    launcher = make(server)
    assert claims.startswith("before") or launcher.find(files.job_dir) is None
    handle = launcher.submit(spec(tmp_path))
    assert mark_of(files) == mark
    if claims == "new":
        server.accept(late[0])
    assert handle.job_id == "1"
    for _ in range(2):
        assert launcher.poll(handle).state in (JobState.PENDING, JobState.RUNNING)
    # The twin is not left in the queue; the job that has the claim is.
    states = server.states()
    assert states[1:] == ["CANCELLED"] * (len(states) - 1)
    assert len(states) == (1 if claims.startswith("before") else 2)
    assert states[0] != "CANCELLED"


@pytest.mark.parametrize("failure", [401, 400, 500])
def test_a_mark_stays_when_the_job_may_exist(
    server: FakeSlurm, tmp_path: Path, failure: int
) -> None:
    """The answer to the request is lost, and then the server refuses to say what became of it."""

    def lose(request: httpx.Request) -> httpx.Response | None:
        if request.method == "POST":
            server.accept(request)
            raise httpx.ReadTimeout("slow")
        if request.url.path.endswith("/ping/"):
            return None
        return httpx.Response(failure, json={"errors": [{"error_number": 1013, "error": "x"}]})

    server.hook = lose
    with pytest.raises(LaunchError):
        make(server).submit(spec(tmp_path))
    files = SlurmFiles(spec(tmp_path).job_dir)
    assert files.submission.exists()
    server.hook = lambda _: None
    assert make(server).submit(spec(tmp_path)).job_id == "1"
    assert server.posts == 1


def test_a_second_request_that_is_refused_may_be_refused_for_the_first(
    server: FakeSlurm, tmp_path: Path
) -> None:
    """As by a limit of one job; the first becomes a job only after we have looked for it."""
    late: list[httpx.Request] = []

    def hook(request: httpx.Request) -> httpx.Response | None:
        if request.method != "POST":
            return None
        if not late:
            late.append(request)
            raise httpx.ReadTimeout("slow")
        server.accept(late[0])
        return httpx.Response(400, json={"errors": [{"error_number": 2050, "error": "limit"}]})

    server.hook = hook
    assert make(server).submit(spec(tmp_path)).job_id == "1"
    assert server.posts == 1


def test_a_mark_goes_with_a_plain_refusal_and_stays_with_one_that_is_not(
    server: FakeSlurm, tmp_path: Path
) -> None:
    refusal = httpx.Response(400, json={"errors": [{"error_number": 2066, "error": "Invalid qos"}]})
    posts: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response | None:
        if request.method == "POST":
            posts.append(request)
            return refusal
        return None

    server.hook = refuse
    files = SlurmFiles(spec(tmp_path).job_dir)
    with pytest.raises(LaunchError, match=r"was refused: QOS .*Invalid qos"):
        make(server).submit(spec(tmp_path))
    assert not files.submission.exists()
    write(files.submission, Submission(key=spec(tmp_path).key, mark="m", begun_at=0.0))
    with pytest.raises(LaunchError, match="was refused"):
        make(server).submit(spec(tmp_path))
    assert mark_of(files) == "m"
    assert json.loads(posts[-1].content)["job"]["comment"] == f"overland m {spec(tmp_path).key}"


def test_a_job_is_recorded_though_the_look_at_it_fails(server: FakeSlurm, tmp_path: Path) -> None:
    def hook(request: httpx.Request) -> httpx.Response | None:
        if request.method == "GET" and "/job/" in request.url.path:
            return httpx.Response(400, json={"errors": [{"error_number": 1013, "error": "x"}]})
        return None

    server.hook = hook
    assert make(server).submit(spec(tmp_path)).job_id == "1"


def test_a_folder_is_for_one_key_from_its_mark_on(server: FakeSlurm, tmp_path: Path) -> None:
    files = SlurmFiles(spec(tmp_path).job_dir)
    files.job_dir.mkdir()
    write(files.submission, Submission(key="other", mark="m", begun_at=0.0))
    with pytest.raises(LaunchError, match=r"is for the job 'other'.*its own folder"):
        make(server).submit(spec(tmp_path))
    assert server.posts == 0


def test_the_comment_on_record_is_the_claim_holders(server: FakeSlurm, tmp_path: Path) -> None:
    """Whatever mark it has; but a number that is another's job now is not watched."""
    wanted = spec(tmp_path)
    files = SlurmFiles(wanted.job_dir)
    files.job_dir.mkdir()
    server.jobs.append(job(1, f"overland old {wanted.key}", "RUNNING"))
    claim(files, 1)
    launcher = make(server)
    handle = launcher.submit(wanted)
    assert (handle.job_id, launcher.poll(handle).state) == ("1", JobState.RUNNING)
    assert server.states() == ["RUNNING", "CANCELLED"]
    files.record.unlink()
    server.jobs[0]["comment"] = "overland old somebody-elses"
    launcher = make(server)
    assert launcher.poll(launcher.submit(wanted)).state is JobState.NODE_FAIL
    assert server.states()[0] == "RUNNING"


def test_a_clock_that_is_ahead_is_not_waited_for(
    server: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(slurm_once.time, "sleep", slept.append)
    files = SlurmFiles(spec(tmp_path).job_dir)
    files.job_dir.mkdir()
    ahead_s = slurm_once.time.time() + 300
    submission = Submission(key="k", mark="m", begun_at=ahead_s)
    write(files.submission, submission)
    server.jobs.append(job(1, submission.comment))
    handle = make(server).find(files.job_dir)
    assert slept == [pytest.approx(0.01)]
    assert handle is not None
    assert handle.submitted_at < ahead_s - 200


def test_an_adopted_job_was_submitted_when_its_mark_was_made(
    server: FakeSlurm, tmp_path: Path
) -> None:
    files = SlurmFiles(spec(tmp_path).job_dir)
    files.job_dir.mkdir()
    submission = Submission(key="k", mark="m", begun_at=1000.0)
    write(files.submission, submission)
    server.jobs.append(job(1, submission.comment))
    handle = make(server).find(files.job_dir)
    assert handle is not None
    assert handle.submitted_at == 1000.0
