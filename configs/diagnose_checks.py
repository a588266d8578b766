"""Checks of the `diagnose:` section. What might be a secret is not repeated in a message."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from configs.diagnose_schema import DiagnoseConfig

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_VARIABLE = 64


def check_diagnose(diagnose: DiagnoseConfig) -> Iterator[str]:
    """A sentence for each setting that cannot be meant so, or has no effect."""
    if diagnose.embedding_model is not None and not diagnose.embedding_model.expanduser().is_dir():
        yield (
            f"diagnose.embedding_model: {diagnose.embedding_model} is no folder: give one with "
            "config.json, tokenizer.json and model.safetensors"
        )
    if diagnose.store is not None and not _may_be_folder(diagnose.resolved_store()):
        yield (
            f"diagnose.store: {diagnose.store} cannot be a folder that is written to: give one of yours, "
            "or leave it out"
        )
    if diagnose.api_key_env is not None:
        yield from _check_key(diagnose.api_key_env, used=diagnose.endpoint is not None)
    if diagnose.endpoint is None:
        if diagnose.log_agent:
            yield "diagnose.log_agent needs a language model: set diagnose.endpoint and diagnose.model"
        return
    yield from _check_endpoint(diagnose.endpoint)
    if not diagnose.model:
        yield "diagnose.model is missing: diagnose.endpoint needs the name that its server gives the model"
    if importlib.util.find_spec("openai") is None:
        yield "diagnose.endpoint needs the openai package: install overland[llm]"


def _may_be_folder(path: Path) -> bool:
    """Whether it is one, or can be made; one that is only read is of use too."""
    if path.exists():
        return path.is_dir()
    there = next(parent for parent in path.parents if parent.exists())
    return there.is_dir() and os.access(there, os.W_OK)


def _check_endpoint(endpoint: str) -> Iterator[str]:
    try:
        url = urlsplit(endpoint)
        well_formed = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, or an unfinished IPv6 address
        well_formed = False
    if not well_formed:
        yield (
            "diagnose.endpoint must be the base URL of a server, like http://localhost:8000/v1 or "
            "https://api.example.com/v1"
        )
    elif url.username or url.password or url.query or url.fragment:
        yield (
            "diagnose.endpoint must not carry a password or a query, for it is written into the run: put "
            "the key into an environment variable and name that in diagnose.api_key_env"
        )


def _check_key(name: str, *, used: bool) -> Iterator[str]:
    if not _VARIABLE.fullmatch(name) or len(name) > _LONGEST_VARIABLE:
        yield (
            "diagnose.api_key_env must be the name of an environment variable, like OPENAI_API_KEY; what "
            "it holds now is not shown, for it may be the key itself"
        )
    elif used and not os.environ.get(name):
        yield (
            f"diagnose.api_key_env names {name}, which is not set: put the key there, or leave it out"
        )
