"""What is no answer of Slurm's, and answers that come late: a server behind a proxy, an upgraded one."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from client_helpers import REQUEST, TOKEN, Server, make_client, old_job

from infra.launch import slurm_jobs
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_dialects import OLD_VERSION
from infra.launch.slurm_errors import SlurmTokenError, SlurmUnavailableError
from infra.launch.slurm_jobs import JobTable
from infra.launch.slurm_token import TokenSource


def test_a_server_that_is_not_up_yet_decides_no_version() -> None:
    """A proxy answers in its place, or slurmctld is away."""
    server = Server("v0.0.40", lambda _: httpx.Response(200, json={"jobs": []}))
    pages = [
        httpx.Response(502, text="Bad gateway"),
        httpx.Response(503, json={"errors": [{"error_number": 1800}]}),
        httpx.Response(200, text="<html>maintenance</html>"),
        httpx.Response(302, headers={"location": "/login"}),
    ]

    def early(request: httpx.Request) -> httpx.Response:
        return pages[0] if pages else server(request)

    tokens = TokenSource(lambda: TOKEN, "a test")
    client = SlurmClient("http://slurm", "me", tokens, transport=httpx.MockTransport(early))
    while pages:
        with pytest.raises(SlurmUnavailableError):
            client.jobs()
        pages.pop(0)
    assert client.jobs() == []
    assert client.dialect.version == "v0.0.40"


def test_22_05_is_asked_already_at_its_ping_whether_the_token_is_wrong() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if f"/{OLD_VERSION}/" not in request.url.path:
            return httpx.Response(404)
        error = {"error": "slurmctld config is unable to load", "error_number": -1}
        if request.method == "DELETE":
            error = {"error": "clear", "error_number": 5005}
        return httpx.Response(500, json={"errors": [error]})

    tokens = TokenSource(lambda: TOKEN, "a test")
    client = SlurmClient("http://slurm", "me", tokens, transport=httpx.MockTransport(answer))
    with pytest.raises(SlurmTokenError):
        client.jobs()
    assert not client.has_answered


def test_a_url_that_is_gone_is_no_job_that_is_gone() -> None:
    """slurmrestd was upgraded: the version is asked for again."""
    known = {"jobs": [{"job_id": 7, "job_state": ["RUNNING"]}]}
    server = Server("v0.0.42", lambda _: httpx.Response(200, json=known))
    client = make_client(server)
    assert client.job(7).state == "RUNNING"
    server.version = "v0.0.45"
    with pytest.raises(SlurmUnavailableError, match=r"does not know /slurm/v0\.0\.42/job/7"):
        client.job(7)
    assert client.job(7).state == "RUNNING"
    assert client.dialect.version == "v0.0.45"
    # And a token that has lapsed by then is waited for, like the server.
    server.version = "v0.0.44"
    with pytest.raises(SlurmUnavailableError):
        client.job(7)
    server.refuses_tokens = True
    with pytest.raises(SlurmUnavailableError, match="does not accept the token"):
        client.job(7)
    server.refuses_tokens = False
    assert client.job(7).state == "RUNNING"
    server.version = "none"
    for _ in range(2):  # It was Slurm before.
        with pytest.raises(SlurmUnavailableError):
            client.job(7)


@pytest.mark.parametrize("status", [408, 429, 504])
def test_a_proxys_not_now_is_no_refusal(status: int) -> None:
    client = make_client(Server("v0.0.42", lambda _: httpx.Response(status, text="later")))
    with pytest.raises(SlurmUnavailableError) as caught:
        client.submit(REQUEST)
    assert caught.value.was_sent


@pytest.mark.parametrize("text", ["<html>", "[]", "{}", ""])
def test_a_success_without_what_was_asked_for_is_no_answer(text: str) -> None:
    client = make_client(Server("v0.0.42", lambda _: httpx.Response(200, text=text)))
    calls: list[Callable[[], object]] = [client.jobs, client.nodes, client.partitions]
    calls += [lambda: client.job(7), lambda: client.accounted_jobs(7)]
    for call in [*calls, lambda: client.submit(REQUEST)]:
        with pytest.raises(SlurmUnavailableError):
            call()


def test_a_server_that_takes_long_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(slurm_jobs.time, "monotonic", lambda: now[0])

    def answer(_: httpx.Request) -> httpx.Response:
        now[0] += 5.0
        return httpx.Response(200, json={"jobs": [old_job(7)]})

    table = JobTable(make_client(Server("v0.0.42", answer)), interval_s=2.0, patience_s=9.0)
    for second in range(40):
        now[0] = max(now[0], float(second))
        table.snapshot()
    assert table.queries == 2, "5 s of answering, then 15 s of peace"
