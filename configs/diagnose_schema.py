"""The `diagnose:` section: where past cases are kept, and which language model may be asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from configs.files import resolved
from configs.sections import NonNegativeInt, PositiveFloat, PositiveInt, Section

STORE_VARIABLE = "OVERLAND_CASES"


def default_store() -> Path:
    """Where past cases are kept: $OVERLAND_CASES, else a folder of the user's data."""
    named = os.environ.get(STORE_VARIABLE)
    if named:
        return Path(named)
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data_home) / "overland" / "cases"


class DiagnoseConfig(Section):
    """How failures are diagnosed. Nothing leaves the machine unless `endpoint` is set."""

    store: Path | None = None
    """Folder of past cases and learned rules, shared by all runs; None: in the user's data folder."""
    embedding_model: Path | None = None
    """Folder of a sentence-embedding model (Hugging Face format); None: the built-in embedding."""
    neighbours: Annotated[int, Field(ge=1, le=20)] = 3
    """Past cases that are shown beside a verdict and to the language model."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server, like http://localhost:8000/v1. None: no model is asked."""
    model: str | None = None
    """Name of the model, as the server knows it."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's API key; None: the server wants none."""
    log_agent: bool = False
    """Whether the model may propose filter rules from live logs too; False: it is asked about failures only."""
    log_agent_samples: Annotated[int, Field(ge=1, le=9)] = 3
    """Answers for one segment of a log; what most of them agree on is kept."""
    timeout_s: PositiveFloat = 60.0
    """Limit of one question, retries included."""
    retries: NonNegativeInt = 2
    """Tries after the first, when the server is overloaded or the connection breaks."""
    max_questions: PositiveInt = 20
    """Questions in one run; then the rules work alone."""
    budget_s: PositiveFloat = 600.0
    """Seconds in one run that may be waited for answers, all questions together."""
    max_prompt_chars: Annotated[int, Field(ge=1000)] = 12_000
    """Most of a log that is sent with one question."""
    max_answer_tokens: Annotated[int, Field(ge=64)] = 1024
    """Limit of one answer."""

    def resolved_store(self) -> Path:
        """Absolute folder of past cases and learned rules."""
        return resolved(self.store or default_store())
