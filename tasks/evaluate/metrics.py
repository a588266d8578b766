"""Which metrics and aggregations a task needs and this environment has, known before anything is loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.evaluate.catalog import CatalogEntry
from tasks.evaluate.harness_source import known_aggregations, known_metrics, nearest
from tasks.evaluate.metric_types import type_problem
from tasks.evaluate.offline import network_allowed
from tasks.evaluate.task_files import FunctionTag
from tasks.evaluate.task_functions import registers

_PACKAGES = {
    "bleu": "sacrebleu",
    "chrf": "sacrebleu",
    "chrf++": "sacrebleu",
    "ter": "sacrebleu",
    "f1": "sklearn",
    "mcc": "sklearn",
    "matthews_corrcoef": "sklearn",
}


def metric_problems(entry: CatalogEntry, *, overridden: bool = False) -> Iterator[str]:
    """What is wrong with the task's metrics, and with how they are aggregated.

    `overridden`: a group changes values of the task, maybe its output type.
    """
    values = entry.values
    if "class" in values:
        return  # the task computes its metrics itself, by whatever names
    metrics = [*_dicts(values.get("metric_list"))]
    own_names = values.get("process_results") is not None or registers(entry, "metric")
    kind = str(values.get("output_type", "generate_until"))
    own_means = registers(entry, "metric") or registers(entry, "aggregation")
    for metric in metrics:
        found = [*_name_problems(metric, own=own_names)]
        if not found and values.get("process_results") is None and not overridden:
            problem = type_problem(metric, kind, own_means=own_means)
            found = [problem] if problem is not None else []
        yield from found if found or own_means else _aggregation_problems(metric)


def group_problems(entry: CatalogEntry) -> Iterator[str]:
    """What is wrong with how a group's metrics are aggregated."""
    metrics = entry.values.get("aggregate_metric_list")
    for metric in _dicts([metrics] if isinstance(metrics, dict) else metrics):
        name = metric.get("aggregation", "mean")
        if not isinstance(name, FunctionTag) and name != "mean":
            yield (
                f"aggregation {name!r} of metric {metric.get('metric')!r} is none for a group: "
                "mean is, and so is a !function"
            )


def _name_problems(metric: dict[str, Any], *, own: bool) -> Iterator[str]:
    name = metric.get("metric")
    if not isinstance(name, str):
        yield "an entry of metric_list has no metric: give it a name, like {metric: acc}"
    if own or not isinstance(name, str) or isinstance(name, FunctionTag):
        return
    if metric.get("hf_evaluate"):
        return
    known = known_metrics()
    if known and name not in known and not Path(name).exists() and not network_allowed():
        hint = nearest(name, known, "is it another package's?")
        yield f"metric {name!r} is not installed: lm-eval has none of this name; {hint}"
    if (package := _missing_package(name)) is not None:
        yield f"metric {name!r} needs the package {package}, which is not installed"


def _aggregation_problems(metric: dict[str, Any]) -> Iterator[str]:
    metric_name, known = metric.get("metric"), known_aggregations()
    if not known or isinstance(metric.get("aggregation"), FunctionTag):
        return
    if "aggregation" not in metric:
        if isinstance(metric_name, FunctionTag) or metric_name not in known_metrics():
            yield (
                f"metric {str(metric_name)!r} says no aggregation, and lm-eval has none for it: "
                "add one, like aggregation: mean"
            )
        return
    name = metric["aggregation"]
    where = f"aggregation {name!r} of metric {str(metric_name)!r}"
    if not isinstance(name, str) or name not in known:
        hint = nearest(str(name), known, f"known are {', '.join(sorted(known))}")
        yield f"{where} is unknown to lm-eval: {hint}"
    elif (package := _missing_package(name)) is not None:
        yield f"{where} needs the package {package}, which is not installed"


def _missing_package(name: str) -> str | None:
    package = _PACKAGES.get(name)
    return package if package is not None and importlib.util.find_spec(package) is None else None


def _dicts(values: Any) -> Iterator[dict[str, Any]]:
    if isinstance(values, list):
        yield from (value for value in values if isinstance(value, dict))
