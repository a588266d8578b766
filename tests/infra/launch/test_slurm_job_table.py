"""The shared table of jobs: few queries for many of them, and patience."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from client_helpers import Server, make_client, old_job

from configs.errors import LaunchError
from infra.launch.slurm_dialects import OLD_VERSION
from infra.launch.slurm_errors import (
    NoSuchJobError,
    SlurmUnavailableError,
)
from infra.launch.slurm_jobs import JobTable, patiently


def test_a_thousand_jobs_are_watched_with_one_query_per_interval() -> None:
    jobs = [old_job(number) for number in range(1, 1001)]
    server = Server(OLD_VERSION, lambda _: httpx.Response(200, json={"jobs": jobs}))
    table = JobTable(make_client(server), interval_s=3600.0, patience_s=1.0)

    def watch(first: int) -> None:
        for number in range(first, first + 250):
            job = table.find(number, comment=f"job {number}", submitted_at=0.0)
            assert job is not None
            assert job.job_id == number

    threads = [threading.Thread(target=watch, args=(first,)) for first in (1, 251, 501, 751)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == table.queries == 1


def test_a_job_that_is_younger_than_the_answer_is_not_yet_seen() -> None:
    server = Server(OLD_VERSION, lambda _: httpx.Response(200, json={"jobs": [old_job(7)]}))
    table = JobTable(make_client(server), interval_s=3600.0, patience_s=1.0)
    table.snapshot()
    later = time.time() + 1
    assert table.find(8, comment="job 8", submitted_at=later) is None
    # The number was another job's until just now.
    assert table.find(7, comment="a new one", submitted_at=later) is None
    with pytest.raises(NoSuchJobError, match="another one now"):
        table.find(7, comment="an old one", submitted_at=0.0)
    with pytest.raises(NoSuchJobError):
        table.find(8, comment="job 8", submitted_at=0.0)


def test_what_was_seen_last_counts_while_the_server_is_away() -> None:
    away = threading.Event()

    def answer(_: httpx.Request) -> httpx.Response:
        if away.is_set():
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"jobs": [old_job(7)]})

    server = Server("v0.0.42", answer)
    table = JobTable(make_client(server), interval_s=0.0, patience_s=0.2)
    assert table.find(7, comment="job 7", submitted_at=0.0) is not None
    assert not table.is_away
    away.set()
    assert table.find(7, comment="job 7", submitted_at=0.0) is not None
    assert table.is_away
    time.sleep(0.3)
    with pytest.raises(LaunchError, match=r"has not answered for 0\.2 s .*jobs go on without us"):
        table.find(7, comment="job 7", submitted_at=0.0)
    away.clear()
    assert table.find(7, comment="job 7", submitted_at=0.0) is not None
    assert not table.is_away


def test_patience() -> None:
    answers = iter([SlurmUnavailableError("away"), "here"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(ask, patience_s=10.0) == "here"
