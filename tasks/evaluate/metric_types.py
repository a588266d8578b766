"""Which of lm-eval's metrics come out of which output type: of one that does not, lm-eval drops the score
without a word, or raises when everything is answered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tasks.evaluate.task_files import FunctionTag

_OF_CHOICES = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "brier_score", "likelihood")
_OF_TEXTS_TOO = ("exact_match", "f1", "mcc")
_OF_TEXT = ("bits_per_byte", "byte_perplexity", "word_perplexity")
_COMPUTED = {
    "multiple_choice": (*_OF_CHOICES, *_OF_TEXTS_TOO),
    "loglikelihood": ("acc", "perplexity"),
    "loglikelihood_rolling": _OF_TEXT,
}
"""What `process_results` of lm-eval's task looks for; it passes over all other names."""
_OF_LIKELIHOODS = {*_OF_CHOICES, *_OF_TEXT, "perplexity"}
_BYPASS = "bypass"
"""lm-eval's way to ask for no score."""


def type_problem(metric: Mapping[str, Any], output_type: str, *, own_means: bool) -> str | None:
    """Why an entry of metric_list gives no score with this output type, if lm-eval computes its results.

    `own_means`: names of aggregations may be the task's own.
    """
    name = metric.get("metric")
    if not isinstance(name, str) or name == _BYPASS:
        return None
    called = name.rpartition(".")[2] if isinstance(name, FunctionTag) else str(name)
    if output_type in _COMPUTED:
        return None if called in _COMPUTED[output_type] else _dropped(called, output_type)
    if output_type != "generate_until" or called not in _OF_LIKELIHOODS:
        return None
    own = own_means or any(
        isinstance(metric.get(key), FunctionTag) for key in ("metric", "aggregation")
    )
    if own or metric.get("hf_evaluate"):
        return None
    return (
        f"metric {called!r} does not suit output_type generate_until: it is made of log-likelihoods, "
        "not of texts: take exact_match, or another output_type"
    )


def _dropped(metric: str, output_type: str) -> str:
    return (
        f"metric {metric!r} gives no score with output_type {output_type}, of which lm-eval has "
        f"{', '.join(_COMPUTED[output_type])}: take one of these, or write process_results"
    )


def without_score(task: Any, scored: Collection[str], left_out: Collection[str]) -> Iterator[str]:
    """Names of metrics that the loaded task was asked for and has no number of.

    `left_out`: those with a result that is no number. A metric of texts may have scores of other names
    in place of its own, like pass@1.
    """
    by_name = task.get_config("process_results") is not None or task.OUTPUT_TYPE in _COMPUTED
    for metric in task.get_config("metric_list") or ():
        name = metric.get("metric") if isinstance(metric, dict) else None
        if not isinstance(name, str) or name == _BYPASS or name in scored:
            continue
        if by_name or name in left_out:
            yield name
