"""What the launcher makes of a site's nodes, of suspended jobs, and of jobs that slurmctld has forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from slurm_server import FakeSlurm, job, make

from configs.errors import LaunchError
from infra.launch.base import JobHandle, JobState
from infra.launch.slurm_record import NodeRecord, SlurmFiles, SlurmRecord, write

NODES = {
    "n1": (["IDLE"], ["main"]),
    "n2": (["IDLE", "POWERED_DOWN"], ["main", "big"]),
    "n3": (["IDLE"], ["big"]),
    "n4": (["IDLE"], ["other"]),
    "n5": (["IDLE", "DRAIN"], ["main"]),
    "n6": (["DOWN", "NOT_RESPONDING"], ["main"]),
}
PARTITIONS = [{"name": "other", "flags": []}, {"name": "main", "flags": ["DEFAULT"]}]


@pytest.fixture
def server() -> FakeSlurm:
    server = FakeSlurm()
    server.nodes = [
        {"name": name, "state": state, "partitions": partitions}
        for name, (state, partitions) in NODES.items()
    ]
    return server


def answers(server: FakeSlurm, path: str, status: int, value: Any) -> None:
    """The server says this to every request with `path` in its own."""

    def hook(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(status, json=value) if path in request.url.path else None

    server.hook = hook


def on_record(tmp_path: Path, comment: str = "overland mark k") -> JobHandle:
    """A job that was submitted before."""
    files = SlurmFiles(tmp_path / "job")
    files.job_dir.mkdir()
    record = SlurmRecord(
        key="k", job_id=7, comment=comment, name="n", url="u", distributed=True, submitted_at=1.0
    )
    write(files.record, record)
    return record.handle(files.job_dir)


# --- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "usable"),
    [("main", ["n1", "n2"]), ("main, big", ["n1", "n2", "n3"]), (None, ["n1", "n2"])],
    ids=["one", "a list", "the default"],
)
def test_nodes_are_those_of_the_partitions_that_jobs_go_to(
    server: FakeSlurm, partition: str | None, usable: list[str]
) -> None:
    answers(server, "/partitions", 200, {"partitions": PARTITIONS})
    launcher = make(server, partition=partition)
    assert launcher.nodes() == usable
    assert launcher.lost_nodes() == ["n6"]


def test_where_the_server_names_no_default_all_nodes_count(server: FakeSlurm) -> None:
    answers(server, "/partitions", 200, {"partitions": [{"name": "main"}, {"name": "other"}]})
    assert make(server).nodes() == ["n1", "n2", "n3", "n4"]


# --- jobs -----------------------------------------------------------------------------------------


def test_a_suspended_job_runs_and_may_be_silent(server: FakeSlurm, tmp_path: Path) -> None:
    server.jobs.append(job(7, "overland mark k", "SUSPENDED", nodes="n1"))
    status = make(server).poll(on_record(tmp_path))
    assert (status.state, status.suspended) == (JobState.RUNNING, True)
    assert status.reason == "suspended by Slurm"


PREEMPTED = {
    "job_id": 7,
    "name": "n",
    "comment": {"job": "overland mark k"},
    "state": {"current": ["PREEMPTED"], "reason": "None"},
    "time": {"start": 2, "end": 9, "submission": 1},
    "nodes": "n1",
}


def test_slurmdbd_is_waited_for_where_there_is_one(server: FakeSlurm, tmp_path: Path) -> None:
    handle, asked = on_record(tmp_path), []

    def hook(request: httpx.Request) -> httpx.Response | None:
        if "/slurmdb/" not in request.url.path:
            return None
        asked.append(request)
        if len(asked) == 1:
            return httpx.Response(503, text="slurmdbd is being restarted")
        return httpx.Response(200, json={"jobs": [PREEMPTED], "errors": []})

    server.hook = hook
    assert make(server).poll(handle).state is JobState.PREEMPTED
    assert len(asked) == 2


def test_nothing_is_settled_while_slurmdbd_stays_away(server: FakeSlurm, tmp_path: Path) -> None:
    handle = on_record(tmp_path)
    answers(server, "/slurmdb/", 503, {})
    with pytest.raises(LaunchError, match="has not answered for 2 s"):
        make(server).poll(handle)
    answers(server, "/slurmdb/", 200, {"jobs": [PREEMPTED], "errors": []})
    assert make(server).poll(handle).state is JobState.PREEMPTED


def test_without_slurmdbd_the_nodes_have_the_word(server: FakeSlurm, tmp_path: Path) -> None:
    handle = on_record(tmp_path)
    times = {"started_at": 2.0, "ended_at": 3.0}
    ended = NodeRecord(job_id=7, node="n1", rank=0, state=JobState.COMPLETED, exit_code=0, **times)
    write(SlurmFiles(handle.job_dir).node("n1"), ended)
    server.hook = lambda request: (
        httpx.Response(404, text="Unable find requested URL.")
        if "/slurmdb/" in request.url.path
        else None
    )
    assert make(server).poll(handle).state is JobState.COMPLETED
