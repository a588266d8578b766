"""Scores a target whose metrics run what the model wrote: each answer's in a sandbox of its own.

    python -m tasks.evaluate.score_code EVALUATION_DIR STEP TARGET PLAN_SHA256

A program of its own, so that it begins without the secrets in the scorer's environment. What computes
a document's metrics (lm-eval's `process_results`) is confined; reading, filters and aggregation are
not: they take the model's text and metrics as data.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.errors import EXIT_OK, EvaluationError
from configs.rundir import EvaluationDir
from tasks.evaluate import sandbox_reads
from tasks.evaluate.enumeration import Target, one_line
from tasks.evaluate.plan import config_of, read_plan
from tasks.evaluate.sandbox import Limits, NoAnswerError, SandboxError, confined
from tasks.evaluate.score_target import attempt

Metrics = dict[str, Any]
_NO_ANSWER_TIME_S = 60.0
_PLAIN = (bool, int, float, str, type(None))


def confine(target: Target, limits: Limits, *, required: bool) -> None:
    """Have the metrics of the target's tasks that run code computed in sandboxes."""
    for name, task in target.tasks.items():
        if getattr(task, "UNSAFE_CODE", False):
            task.process_results = Confined(
                name, task.process_results, set(task.aggregation()), limits, required=required
            )


class Confined:
    """A task's `process_results` in a sandbox.

    An answer whose code takes too long, ends its process or gives no metrics is scored as if the model
    had written nothing. So is one that leaves out a metric: it would count in none of the means.
    """

    def __init__(
        self,
        task: str,
        compute: Callable[[Any, Any], Metrics],
        metrics: set[str],
        limits: Limits,
        *,
        required: bool,
    ) -> None:
        self._task = task
        self._compute = compute
        self._metrics = metrics
        self._limits = limits
        self._required = required
        self._nothing_gives: set[str] | None = None

    def __call__(self, document: Any, results: Any) -> Metrics:
        try:
            found = self._confined(document, results, self._limits)
            # A metric may have others in place of its own name, like pass@1.
            if set(found) == self._metrics or set(found) == self._expected(document, results):
                return found
            reason = f"its metrics are {sorted(found)}"
        except NoAnswerError as error:
            reason = str(error)
        print(f"{self._task}: an answer counts as empty: {reason}", file=sys.stderr, flush=True)
        return self._of_nothing(document, results)

    def _confined(self, document: Any, results: Any, limits: Limits) -> Metrics:
        def compute() -> list[Any]:
            return packed(dict(self._compute(document, results)))

        found = unpacked(confined(compute, limits, required=self._required))
        if not isinstance(found, dict):
            raise NoAnswerError("its metrics are no table")
        return found

    def _expected(self, document: Any, results: Any) -> set[str]:
        if self._nothing_gives is None:
            self._nothing_gives = set(self._of_nothing(document, results))
        return self._nothing_gives

    def _of_nothing(self, document: Any, results: Any) -> Metrics:
        # Only the task's own code runs here: a busy machine must not have its limit refuse the whole task.
        patient = replace(self._limits, time_s=max(self._limits.time_s, _NO_ANSWER_TIME_S))
        try:
            return self._confined(document, emptied(results), patient)
        except NoAnswerError as error:
            raise SandboxError(
                f"evaluation task {self._task!r} cannot be scored: not even an empty answer can: {error}"
            ) from error


def emptied(results: Any) -> Any:
    """The same with empty texts."""
    if isinstance(results, str):
        return ""
    if isinstance(results, list | tuple):
        return type(results)(emptied(result) for result in results)
    return results


def packed(value: Any) -> list[Any]:
    """A metric's value for JSON, which alone would give tuples and numpy's numbers back as others."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no metric")
    if type(value) in _PLAIN:
        return ["plain", value]
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [type(value).__name__, [packed(item) for item in value]]
    if isinstance(value, Mapping):
        return ["dict", [[str(key), packed(item)] for key, item in value.items()]]
    if type(value).__module__ == "numpy" and hasattr(value, "item") and value.ndim == 0:
        return ["numpy", [value.dtype.str, value.item()]]
    raise TypeError(f"a metric is a {type(value).__name__}, no number or text")


def unpacked(found: Any) -> Any:
    """The value of it. NoAnswerError for anything that :func:`packed` does not give."""
    try:
        kind, value = found
        if kind == "plain" and type(value) in _PLAIN:
            return value
        if kind in ("list", "tuple"):
            items = [unpacked(item) for item in value]
            return items if kind == "list" else tuple(items)
        if kind == "dict":
            return {str(key): unpacked(item) for key, item in value}
        if kind == "numpy":
            return _numpy_scalar(*value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NoAnswerError(f"its metrics are damaged: {one_line(error)}") from error
    raise NoAnswerError("its metrics are damaged")


def _numpy_scalar(kind: str, value: float) -> Any:
    import numpy as np

    if np.dtype(kind).kind not in "biuf" or type(value) not in (bool, int, float):
        raise ValueError(f"{kind} is no number's")
    return np.dtype(kind).type(value)


def _main(argv: list[str]) -> int:
    folder, step, target, plan_sha256 = argv
    evaluation = EvaluationDir(Path(folder), int(step))
    plan, config = read_plan(evaluation), config_of(evaluation)
    if plan.sha256() != plan_sha256:
        raise EvaluationError("the plan was made anew meanwhile")
    limits = Limits(
        memory_bytes=int(config.code_memory_gib * (1 << 30)),
        time_s=config.code_timeout_s,
        readable=(evaluation.tasks_dir, *config.task_dirs),
    )
    if not sandbox_reads.is_available():
        print(
            "this kernel has no Landlock: the model's code can read whatever this user can",
            file=sys.stderr,
        )
    required = config.code_sandbox == "required"
    if not required:
        print("code_sandbox is best_effort: what the kernel lacks is done without", file=sys.stderr)
    attempt(
        evaluation, plan, target, prepare=lambda found: confine(found, limits, required=required)
    )
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
