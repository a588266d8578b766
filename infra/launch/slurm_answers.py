"""Reading slurmrestd's answers. One that is not as it should be is never taken for "there is nothing"."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from infra.launch.slurm_errors import SlurmError, SlurmUnavailableError

T = TypeVar("T")
TEXT_LIMIT = 200
_MAX_ANSWER_BYTES = 512 << 20
"""All jobs of a large site are some tens of MiB."""


def received(response: httpx.Response, *, secret: str, timeout_s: float) -> httpx.Response:
    """The whole of a streamed answer, without the secret that a server or proxy may repeat in it.

    One that drips or never ends is that of a server that is away (httpx limits only each read).
    """
    content = bytearray()
    ends_at = time.monotonic() + timeout_s
    for piece in response.iter_bytes():
        content += piece
        if time.monotonic() > ends_at:
            raise httpx.ReadTimeout(f"the answer was not complete after {timeout_s:.0f} s")
        if len(content) > _MAX_ANSWER_BYTES:
            raise httpx.ReadError(f"the answer is longer than {_MAX_ANSWER_BYTES >> 20} MiB")
    known = bytes(content).replace(secret.encode(), b"<token>")
    kept = {name: v for name, v in response.headers.items() if name == "content-type"}
    return httpx.Response(response.status_code, headers=kept, content=known)


def any_object(response: httpx.Response) -> dict[str, Any]:
    """The answer's JSON object; empty when it has none, as a refusal may."""
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def the_object(where: str, response: httpx.Response) -> dict[str, Any]:
    """What a success says. A page of a proxy is no answer of Slurm's, and says nothing about jobs."""
    answer = any_object(response)
    if not answer and response.text.strip() != "{}":
        raise SlurmUnavailableError(
            f"{where} answers {response.status_code} without a JSON object: "
            f"{response.text[:TEXT_LIMIT].strip()!r}"
        )
    return answer


def parsed(
    where: str, key: str, answer: dict[str, Any], parse: Callable[[dict[str, Any]], T]
) -> list[T]:
    """The things that the answer has under `key`."""
    if not isinstance(answer.get(key), list):
        raise SlurmUnavailableError(f"{where} answers without {key!r}")
    try:
        return [parse(value) for value in answer[key]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SlurmError(
            f"{where} answers otherwise than its version's documentation says: "
            f"{type(error).__name__} {error}"
        ) from error


def errors_in(answer: dict[str, Any]) -> list[SlurmError]:
    """What is under `errors`; dialects name the number differently."""
    found = []
    for error in answer.get("errors") or []:
        number = error.get("error_number", error.get("error_code", error.get("errno")))
        texts = dict.fromkeys(t for t in (error.get("error"), error.get("description")) if t)
        found.append(SlurmError(": ".join(texts) or f"error {number}", number))
    return found
