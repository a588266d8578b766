"""Which metrics a task needs and this environment has, known before anything is loaded.

lm-eval's own are read off its source: importing it takes seconds, and a check before a run must not.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from pathlib import Path

from configs.errors import ConfigError
from tasks.evaluate.catalog import CatalogEntry, FunctionTag

_REGISTERED = re.compile(r"@register_metric\(\s*metric=\"([^\"]+)\"")
_PACKAGES = {
    "bleu": "sacrebleu",
    "chrf": "sacrebleu",
    "chrf++": "sacrebleu",
    "ter": "sacrebleu",
    "f1": "sklearn",
    "mcc": "sklearn",
}


def check_metrics(entry: CatalogEntry) -> None:
    """ConfigError for a metric that lm-eval does not know, or whose package is not installed."""
    values = entry.values
    if values.get("process_results") is not None or "class" in values:
        return  # the task computes its metrics itself, by whatever names
    known = known_metrics()
    for metric in values.get("metric_list") or []:
        name = metric.get("metric") if isinstance(metric, dict) else None
        if not isinstance(name, str) or isinstance(name, FunctionTag) or metric.get("hf_evaluate"):
            continue
        if known and name not in known and not Path(name).exists():
            nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(nearest)}?" if nearest else "is it another package's?"
            )
            raise ConfigError(
                f"evaluation task {entry.name!r} ({entry.path}): metric {name!r} is not installed: "
                f"lm-eval has none of this name; {hint}"
            )
        package = _PACKAGES.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"evaluation task {entry.name!r} ({entry.path}): metric {name!r} needs the package "
                f"{package}, which is not installed"
            )


@functools.cache
def known_metrics() -> frozenset[str]:
    """Names of lm-eval's metrics; empty when its source cannot be found."""
    spec = importlib.util.find_spec("lm_eval")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        source = Path(folder) / "api" / "metrics.py"
        if source.is_file():
            return frozenset(_REGISTERED.findall(source.read_text()))
    return frozenset()
