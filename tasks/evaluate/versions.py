"""Versions of the packages that decide what a model answers: another one may answer otherwise."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping

from configs.errors import EvaluationError

_ANSWERING = ("torch", "transformers", "tokenizers")
_OF_BACKEND = {"vllm": ("vllm",)}


@functools.cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def harness_version() -> str:
    """lm-eval's."""
    return _version("lm_eval")


def versions_of(backend: str) -> dict[str, str]:
    """Package -> version that is installed here, of those that the backend answers with; imports none."""
    return {name: _version(name) for name in (*_ANSWERING, *_OF_BACKEND.get(backend, ()))}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """`transformers 4.57.1 -> 4.57.3`, or empty."""
    names = sorted({*before, *now})
    changed = [name for name in names if before.get(name) != now.get(name)]
    return ", ".join(f"{n} {before.get(n) or '?'} -> {now.get(n) or 'none'}" for n in changed)


def check_versions(planned: Mapping[str, str], backend: str) -> None:
    """EvaluationError when this process would answer with other versions than were planned for."""
    if said := differences(planned, versions_of(backend)):
        raise EvaluationError(
            f"this worker's Python has other packages than the plan was made for ({said}): give all nodes "
            "the same, or evaluate again"
        )
