"""The client, against a server that is made up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from client_helpers import REQUEST, TOKEN, Answer, Server, errors, make_client, old_job

from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_dialects import OLD_VERSION
from infra.launch.slurm_errors import (
    NoSuchJobError,
    SlurmError,
    SlurmTokenError,
    SlurmUnavailableError,
)
from infra.launch.slurm_jobs import JobTable, patiently
from infra.launch.slurm_token import TokenSource, token_source

# --- slurmdbd -------------------------------------------------------------------------------------


def test_jobs_that_slurmdbd_does_not_know_and_sites_without_it() -> None:
    nothing = errors(200, error="Nothing found with query", error_number=9003)
    server = Server("v0.0.38", nothing)
    assert make_client(server).accounted_jobs(7) == []
    assert server.asked == ["GET /slurmdb/v0.0.38/job/7"]
    without = make_client(Server("v0.0.38", lambda _: httpx.Response(404, text="Unable find.")))
    with pytest.raises(SlurmError):
        without.accounted_jobs(7)


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.40", "v0.0.43", "v0.0.45"])
def test_the_best_version_is_found_by_asking_once(version: str) -> None:
    server = Server(version, lambda _: httpx.Response(200, json={"jobs": []}))
    client = make_client(server)
    assert client.jobs() == client.jobs() == []
    assert client.dialect.version == version
    assert len([r for r in server.requests if f"{version}/ping" in r.url.path]) == 1
    slash = "" if version == OLD_VERSION else "/"
    assert server.asked == [f"GET /slurm/{version}/jobs{slash}"] * 2


def test_a_version_that_we_do_not_speak() -> None:
    client = make_client(Server("v0.0.37", errors(200)))
    with pytest.raises(
        SlurmError, match=r"speaks none of the versions v0\.0\.38, .*22\.05 or 23\.11"
    ):
        client.jobs()


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "answer", "kind", "words"),
    [
        ("v0.0.42", errors(511, error_number=1007), SlurmTokenError, "does not accept the token"),
        ("v0.0.38", lambda _: httpx.Response(401, text="no"), SlurmTokenError, "for user 'me'"),
        ("v0.0.42", errors(502, error_number=1800), SlurmUnavailableError, "slurmctld behind"),
        ("v0.0.42", errors(500, error_number=-1), SlurmUnavailableError, "answers 500"),
        ("v0.0.38", errors(500, error="unknown", error_number=2017), NoSuchJobError, "unknown"),
        ("v0.0.42", errors(400, error="bad"), SlurmError, "bad"),
    ],
)
def test_what_is_wrong(version: str, answer: Answer, kind: type[SlurmError], words: str) -> None:
    client = make_client(Server(version, answer))
    with pytest.raises(SlurmError, match=words) as caught:
        client.job(7)
    assert type(caught.value) is kind
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "kind"), [(5005, SlurmTokenError), (1800, SlurmUnavailableError)]
)
def test_22_05_is_asked_what_its_vague_answer_means(number: int, kind: type[SlurmError]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        vague = {"description": "Failed while looking for jobs", "error_number": -1}
        clear = {"error": "clear", "error_number": number}
        error = vague if request.method == "GET" else clear
        return httpx.Response(500, json={"errors": [error]})

    with pytest.raises(SlurmError) as caught:
        make_client(Server(OLD_VERSION, answer)).jobs()
    assert type(caught.value) is kind


def test_a_token_that_is_refused_is_read_again_once() -> None:
    tokens = iter(["head.e30.old", "head.e30.new"])

    def answer(request: httpx.Request) -> httpx.Response:
        is_new = request.headers["X-SLURM-USER-TOKEN"].endswith("new")
        return httpx.Response(200 if is_new else 401, json={"jobs": []})

    server = Server("v0.0.42", answer)
    assert make_client(server, TokenSource(lambda: next(tokens), "a test")).jobs() == []
    assert len(server.asked) == 2


def test_once_a_token_was_accepted_a_new_one_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "token"

    def answer(request: httpx.Request) -> httpx.Response:
        is_good = request.headers["X-SLURM-USER-TOKEN"] == path.with_name("good").read_text()
        return httpx.Response(200 if is_good else 401, json={"jobs": [old_job(7)]})

    def write_token(name: str, accepted: str = "") -> None:
        path.touch(mode=0o600)
        path.write_text(f"head.e30.{name}")
        path.with_name("good").write_text(f"head.e30.{accepted or name}")

    write_token("wrong", accepted="first")
    client = make_client(Server("v0.0.42", answer), token_source(path, ()))
    with pytest.raises(SlurmTokenError) as caught:
        client.jobs()
    assert not isinstance(caught.value, SlurmUnavailableError), "nothing tells that it gets better"

    write_token("first")
    table = JobTable(client, interval_s=0.0, patience_s=30.0)
    assert table.find(7, comment="job 7", submitted_at=0.0) is not None
    write_token("first", accepted="second")
    for _ in range(100):
        assert table.find(7, comment="job 7", submitted_at=0.0) is not None
        time.sleep(0.0 if table.is_away else 0.02)
    assert table.is_away
    renewal = threading.Timer(0.2, write_token, ["second"])
    renewal.start()
    assert len(patiently(client.jobs, patience_s=30.0)) == 1
    renewal.join()


def test_whether_a_request_may_have_arrived_is_known() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    def time_out(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("too slow")

    for failure, was_sent in ((refuse, False), (time_out, True)):
        client = make_client(Server("v0.0.42", failure))
        assert client.dialect.version == "v0.0.42"
        with pytest.raises(SlurmUnavailableError) as caught:
            client.submit(REQUEST)
        assert caught.value.was_sent is was_sent


# --- calls ----------------------------------------------------------------------------------------


def test_submitting() -> None:
    body: dict[str, Any] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        body.update(json.loads(request.content))
        return httpx.Response(200, json={"errors": [], "job_id": 12})

    assert make_client(Server(OLD_VERSION, answer)).submit(REQUEST) == (12, None)
    assert (body["script"], body["job"]["comment"]) == ("#!/bin/bash\n", "c")


def test_a_job_that_was_accepted_with_an_objection() -> None:
    answer = {"errors": [{"error_code": 2015, "error": "not now"}], "job_id": 12}
    client = make_client(Server(OLD_VERSION, lambda _: httpx.Response(200, json=answer)))
    job_id, objection = client.submit(REQUEST)
    assert job_id == 12
    assert objection is not None
    assert objection.number == 2015


def test_cancelling_what_has_ended_or_is_unknown_is_nothing() -> None:
    make_client(Server(OLD_VERSION, errors(500, error_number=2017))).cancel(7)
    status = {"status": [{"job_id": "7", "error": {"code": 2017, "message": "Invalid job id"}}]}
    make_client(Server("v0.0.42", lambda _: httpx.Response(200, json=status))).cancel(7)
    refused = {"status": [{"error": {"code": 2008, "message": "not yours"}}]}
    with pytest.raises(SlurmError, match="not yours"):
        make_client(Server("v0.0.42", lambda _: httpx.Response(200, json=refused))).cancel(7)


def test_nodes_are_drained_by_rest_or_scontrol() -> None:
    server = Server("v0.0.42", lambda _: httpx.Response(200, json={"errors": []}))
    make_client(server).drain("node3", "broken")
    assert server.asked == ["POST /slurm/v0.0.42/node/node3"]
    assert json.loads(server.requests[-1].content) == {"state": ["DRAIN"], "reason": "broken"}
    old = SlurmClient(
        "http://slurm",
        "me",
        TokenSource(lambda: TOKEN, "a test"),
        scontrol=["false"],
        transport=httpx.MockTransport(Server(OLD_VERSION, errors(500))),
    )
    with pytest.raises(SlurmError, match="false update"):
        old.drain("node3", "broken")


# --- answers without an end ---------------------------------------------------------------------


def drip() -> Iterator[bytes]:
    while True:
        yield b" "


def test_an_answer_without_end_is_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.launch.slurm_answers._MAX_ANSWER_BYTES", 1000)
    with pytest.raises(SlurmUnavailableError, match="longer than"):
        make_client(Server("v0.0.40", lambda _: httpx.Response(200, content=drip()))).jobs()


def test_an_answer_that_drips_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.launch.slurm_client._READ_TIMEOUT_S", 0.1)
    with pytest.raises(SlurmUnavailableError, match="not complete after"):
        make_client(Server("v0.0.40", lambda _: httpx.Response(200, content=drip()))).jobs()


def test_a_server_that_repeats_the_token_does_not_make_us_show_it() -> None:
    answer = httpx.Response(500, text=f"bad header X-SLURM-USER-TOKEN: {TOKEN}")
    with pytest.raises(SlurmUnavailableError, match="<token>") as caught:
        make_client(Server("v0.0.40", lambda _: answer)).jobs()
    assert TOKEN not in str(caught.value)
