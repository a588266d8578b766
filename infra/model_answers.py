"""Reads the JSON object out of a language model's text: strictly, for the text is not trusted."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from configs.errors import LanguageModelError

_THOUGHTS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
)
_FENCE = "```"


def parse_object(text: str) -> dict[str, Any]:
    """The one JSON object that the text is, behind a block of thoughts or inside a code fence."""
    body = _without_fence(_without_thoughts(text.strip()))
    try:
        value = json.loads(body, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except RecursionError as error:
        raise LanguageModelError("the answer is nested too deeply") from error
    except ValueError as error:
        raise LanguageModelError(
            f"the answer is not the JSON that was asked for ({error})"
        ) from error
    if not isinstance(value, dict):
        raise LanguageModelError("the answer is JSON, but no object")
    return value


def _without_thoughts(text: str) -> str:
    """What follows the model's thoughts. JSON inside of them is no answer."""
    if text.startswith("{"):
        return text
    for opening, closing in _THOUGHTS:
        if text.startswith(opening) or closing in text:  # some servers swallow the opening mark
            _, found, rest = text.rpartition(closing)
            if not found:
                raise LanguageModelError("the model thinks, and gives no answer")
            return rest.strip()
    return text


def _without_fence(text: str) -> str:
    """What stands inside the one code fence; small models put a word before or behind it."""
    before, first, rest = text.partition(f"{_FENCE}json\n")
    if first and "{" not in before and rest.count(_FENCE) == 1:
        return rest.partition(_FENCE)[0].strip()
    if not (text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) > 2 * len(_FENCE)):
        return text
    first, _, rest = text.removesuffix(_FENCE).partition("\n")
    return rest.strip() if first.strip() in (_FENCE, f"{_FENCE}json", f"{_FENCE}JSON") else text


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands in it twice")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
