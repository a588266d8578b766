"""A language model that answers lm-eval out of recorded responses: scoring without a model.

Every request must have exactly the response that was recorded for exactly this prompt, and every
response must be asked for; anything else is an error, never a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from configs.errors import EvaluationError
from tasks.evaluate.enumeration import request_key, request_sha256
from tasks.evaluate.harness import LM, Instance
from tasks.evaluate.responses import ResponseRow


class ReplayLM(LM):  # type: ignore[misc]  # lm-eval is untyped
    """Recorded responses behind lm-eval's interface."""

    def __init__(self, rows: Iterable[ResponseRow]) -> None:
        super().__init__()
        self._rows = {row.key: row for row in rows}
        self._unused = set(self._rows)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return [self._checked(row, tuple) for row in self._find(requests)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return [self._checked(row, float) for row in self._find(requests)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return [self._checked(row, str) for row in self._find(requests)]

    def check_all_used(self) -> None:
        """Raise when a response was recorded that no request asks for."""
        if self._unused:
            raise EvaluationError(
                f"{len(self._unused)} recorded responses answer no request, the first is "
                f"{list(min(self._unused))}: remove plan.json and run inference again"
            )

    def _find(self, requests: list[Instance]) -> list[ResponseRow]:
        """The recorded responses, in the order of `requests`, which holds each as often as it repeats."""
        repeats: Counter[int] = Counter()
        found = []
        for request in requests:
            found.append(self._find_one(request, repeats[id(request)]))
            repeats[id(request)] += 1
        return found

    def _find_one(self, request: Instance, repeat: int) -> ResponseRow:
        key = request_key(request, repeat)
        row = self._rows.get(key)
        if row is None:
            raise EvaluationError(f"no response was recorded for {list(key)}: run inference again")
        if row.prompt_sha256 != request_sha256(request):
            raise EvaluationError(
                f"the response {list(key)} was recorded for another prompt: the task's data or its "
                "YAML has changed since, or the file was edited; remove plan.json and run inference again"
            )
        self._unused.discard(key)
        return row

    @staticmethod
    def _checked(row: ResponseRow, kind: type) -> Any:
        if not isinstance(row.response, kind):
            raise EvaluationError(
                f"the response {list(row.key)} is no {kind.__name__}: run inference again"
            )
        return row.response
