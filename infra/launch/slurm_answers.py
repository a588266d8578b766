"""Reading slurmrestd's answers. One that is not as it should be is never taken for "there is nothing"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from infra.launch.slurm_errors import SlurmError, SlurmUnavailableError

T = TypeVar("T")
TEXT_LIMIT = 200


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
