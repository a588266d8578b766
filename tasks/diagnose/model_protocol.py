"""What the agents need of a language model; infra/language_model.py is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Model(Protocol):
    """Answers questions with JSON objects."""

    @property
    def name(self) -> str:
        """Names the model, as provenance."""

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        schema: Mapping[str, Any],
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """A JSON object; LanguageModelError when there is none. It may not fit the schema."""
