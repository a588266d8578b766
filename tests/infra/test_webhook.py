"""Webhooks that are there, down, slow, or unwilling; and URLs that nobody gets to see."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from infra.webhook import SENT, post
from tests.webhook_server import WebhookServer

SECRET = "T0P-s3cret"


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


def test_the_message_arrives_and_its_url_is_logged_nowhere(
    server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "httpx")
    assert post(f"{server.url}/{SECRET}", {"text": "hello"}, timeout_s=20) == SENT
    assert server.messages == [(f"/{SECRET}", {"text": "hello"})]
    assert SECRET not in caplog.text
    assert not logging.getLogger("httpx").filters


@pytest.mark.parametrize(
    ("status", "said", "asked"),
    [
        (500, "failed with HTTP status 500", 2),
        (404, "refused with HTTP status 404", 1),
        (302, "refused with HTTP status 302", 1),  # to wherever: the message stays here
    ],
)
def test_a_server_that_says_no(server: WebhookServer, status: int, said: str, asked: int) -> None:
    server.status = status
    assert post(server.url, {}, timeout_s=20, tries=2) == said
    assert len(server.messages) == asked


@pytest.mark.parametrize("drips", [False, True])
def test_a_server_that_never_ends_its_answer_is_given_up(
    server: WebhookServer, drips: bool
) -> None:
    server.hang, server.drip = True, drips
    assert post(server.url, {}, timeout_s=0.5) == "no answer within 0.5 s"


def test_a_server_that_is_down_and_a_url_that_is_none() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = post(f"http://127.0.0.1:{port}/{SECRET}", {}, timeout_s=20)
    assert said == "not reachable (ConnectError)"
    for url in (f"http://[::{SECRET}", f"gopher://{SECRET}", f"http://a:{SECRET}/b", ""):
        said = post(url, {}, timeout_s=20)
        assert said.startswith("not reachable (") and SECRET not in said
