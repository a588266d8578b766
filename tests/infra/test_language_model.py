"""The language model's client, against servers that misbehave in every way we could think of."""

from __future__ import annotations

import gzip
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from model_server import (
    Behaviour,
    Handler,
    close,
    close_within,
    completion,
    drip,
    flood,
    hang,
    not_http,
    raw,
    says,
    serve,
    status,
)

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import LanguageModelError
from infra.language_model import LanguageModel
from infra.model_answers import parse_object

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
QUESTION = [{"role": "user", "content": "a?"}]
ROOT = Path(__file__).parents[2]
KEY = "sk-test-8f7e6d5c4b3a29181706"


@contextmanager
def model(url: str, **changes: Any) -> Iterator[LanguageModel]:
    values = {"timeout_s": 20.0, "retries": 0, **changes}
    with LanguageModel(DiagnoseConfig(endpoint=url, model="m", **values)) as opened:
        yield opened


def refusal(behaviour: Behaviour, **changes: Any) -> str:
    with (
        serve(behaviour) as server,
        model(server.url, **changes) as asked,
        pytest.raises(LanguageModelError) as caught,
    ):
        asked.complete(QUESTION, schema=SCHEMA)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 320
    return message


@pytest.mark.parametrize(
    "content",
    [
        '{"a": 1}',
        ' \n{"a": 1}\n',
        '```json\n{"a": 1}\n```',
        '<think>{"a": 2}? no.</think>\n{"a": 1}',
        'first {"a": 3}</think>{"a": 1}',
    ],
)
def test_the_answers_object_is_read(content: str) -> None:
    with serve(says(content)) as server, model(server.url) as asked:
        assert asked.complete(QUESTION, schema=SCHEMA, seed=3) == {"a": 1}
        sent = server.requests[0]
    assert sent["response_format"]["json_schema"]["schema"] == SCHEMA
    assert (sent["model"], sent["seed"], sent["temperature"]) == ("m", 3, 0.0)


@pytest.mark.parametrize("code", [400, 422, 501])
def test_a_server_without_schemas_is_asked_in_words(code: int) -> None:
    def only_words(handler: Handler) -> None:
        if "response_format" in handler.asked:
            handler.send(code, b'{"error": {"message": "response_format is unknown"}}')
        else:
            handler.answer('{"a": 1}')

    with serve(only_words) as server, model(server.url) as asked:
        assert asked.complete(QUESTION, schema=SCHEMA) == {"a": 1}
        assert asked.complete(QUESTION, schema=SCHEMA) == {"a": 1}
        assert len(server.requests) == 3, "it is remembered"
        assert (
            json.dumps(SCHEMA, separators=(",", ":"))
            in server.requests[1]["messages"][-1]["content"]
        )


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (close, "the connection broke"),
        (close_within, "the connection broke"),
        (not_http, "the connection broke"),
        (flood, "larger than"),
        (status(500), "status 500"),
        (status(429), "status 429"),
        (status(401), "status 401"),
        (status(404), "status 404"),
        (status(302, location="http://127.0.0.1:9/v1"), "status 302"),
        (raw(b""), "cannot be read"),
        (raw(b"<html>gateway</html>"), "cannot be read"),
        (raw(b"[1, 2]"), "no chat completion"),
        (raw(b"null"), "no chat completion"),
        (raw(b"\xff\xfe\x00"), "cannot be read"),
        (raw(b'{"choices": []}'), "no chat completion"),
        (raw(b'{"choices": [{"message": null}]}'), "no chat completion"),
        (raw(b'{"choices": "none"}'), "no chat completion"),
        (raw(b'{"error": "overloaded"}'), "no chat completion"),
        (raw(completion([{"message": {"content": 7}}])), "empty"),
        (raw(gzip.compress(b"{}"), content_encoding="gzip"), "gzip"),
        (raw(b"[" * 100_000), "cannot be read"),
        (lambda h: h.answer(None, message={"refusal": "I can't help"}), "refused"),
        (lambda h: h.answer("", finish_reason="stop"), "empty"),
        (lambda h: h.answer('{"a": 1', finish_reason="length"), "cut off"),
        (lambda h: h.answer(None, finish_reason="content_filter"), "withheld"),
        (says("I think it is a network error."), "not the JSON"),
        (says("Sure! {'a': 1}"), "not the JSON"),
        (says('```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```'), "not the JSON"),
        (says('{"a": 1} or\n```json\n{"a": 2}\n```'), "not the JSON"),
        (says('{"a": 1} {"a": 2}'), "not the JSON"),
        (says('{"a": 1, "a": 2}'), "twice"),
        (says('{"a": NaN}'), "NaN"),
        (says("[1]"), "no object"),
        (says('<think>{"a": 1}'), "thinks"),
        (says("[" * 50_000), "nested too deeply"),
        (says('{"a":' * 50_000), "nested too deeply"),
    ],
)
def test_misbehaviour_is_one_sentence(behaviour: Behaviour, said: str) -> None:
    assert said in refusal(behaviour)


@pytest.mark.parametrize("behaviour", [hang, drip])
def test_silence_and_dripping_end_at_the_time_limit(behaviour: Behaviour) -> None:
    assert "no answer" in refusal(behaviour, timeout_s=1.0)


def test_what_is_left_of_the_budget_is_a_limit_too() -> None:
    assert "budget_s" in refusal(hang, timeout_s=30.0, budget_s=0.5)


def test_nobody_there() -> None:
    with serve(hang) as server:
        url = server.url
    with model(url) as asked, pytest.raises(LanguageModelError, match="the connection broke"):
        asked.complete(QUESTION, schema=SCHEMA)


def test_an_overloaded_server_is_asked_again() -> None:
    def second_time(handler: Handler) -> None:
        if len(handler.server.requests) == 1:
            handler.send(503, b"{}", retry_after="0")
        else:
            handler.answer('{"a": 1}')

    with serve(second_time) as server, model(server.url, retries=2) as asked:
        assert asked.complete(QUESTION, schema=SCHEMA) == {"a": 1}


def test_the_budget_of_questions() -> None:
    with serve(says('{"a": 1}')) as server, model(server.url, max_questions=2) as asked:
        asked.complete(QUESTION, schema=SCHEMA)
        asked.complete(QUESTION, schema=SCHEMA)
        with pytest.raises(LanguageModelError, match="budget of this run is used up"):
            asked.complete(QUESTION, schema=SCHEMA)
        assert len(server.requests) == 2


def test_the_key_is_sent_and_never_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OVERLAND_TEST_KEY", KEY)
    caplog.set_level(logging.DEBUG)

    def repeats_it(handler: Handler) -> None:
        sent = handler.headers["authorization"]
        handler.send(401, json.dumps({"error": {"message": f"bad key {sent}"}}).encode())

    with serve(repeats_it) as server, model(server.url, api_key_env="OVERLAND_TEST_KEY") as asked:
        with pytest.raises(LanguageModelError) as caught:
            asked.complete(QUESTION, schema=SCHEMA)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None, "a traceback would show the client's own message"
    assert KEY not in caplog.text


def test_a_key_that_is_not_there_is_named_and_nothing_is_sent() -> None:
    config = DiagnoseConfig(endpoint="http://x/v1", model="m", api_key_env="OVERLAND_NO_SUCH_KEY")
    with pytest.raises(LanguageModelError, match="OVERLAND_NO_SUCH_KEY, which is not set"):
        LanguageModel(config)


def test_a_redirect_is_not_followed() -> None:
    """It would carry the log to another server."""
    with serve(says('{"a": 1}')) as other:
        refusal(status(307, location=f"{other.url}/chat/completions"))
        assert not other.requests


def test_thoughts_inside_an_answer_are_text() -> None:
    assert parse_object('{"quote": "a </think> b"}') == {"quote": "a </think> b"}


def test_the_module_can_be_imported_without_the_extra() -> None:
    """Flows import it whether or not a model is configured."""
    code = (
        "import sys; sys.modules.update(openai=None, httpx2=None); import infra.language_model as m; "
        "print(m.LanguageModel)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
