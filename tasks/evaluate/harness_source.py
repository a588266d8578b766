"""What lm-eval knows by name, read off its source: importing it takes seconds, and a check must not."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import re
from collections.abc import Collection
from pathlib import Path

_METRIC = re.compile(r"@register_metric\(\s*metric=\"([^\"]+)\"")
_AGGREGATION = re.compile(r"@register_aggregation\(\s*\"([^\"]+)\"")
_FILTER = re.compile(r"@register_filter\(\s*\"([^\"]+)\"")
_NAMES_SHOWN = 3


def known_metrics() -> frozenset[str]:
    """Names of lm-eval's metrics; empty when its source cannot be found."""
    return _registered("api/metrics.py", _METRIC)


def known_aggregations() -> frozenset[str]:
    """Names of lm-eval's aggregations; empty when its source cannot be found."""
    return _registered("api/metrics.py", _AGGREGATION)


def known_filters() -> frozenset[str]:
    """Names of lm-eval's filters; empty when its source cannot be found."""
    return _registered("filters/*.py", _FILTER)


@functools.cache
def known_keys() -> frozenset[str]:
    """What a task's YAML file may say; empty when lm-eval's source cannot be found."""
    for source in _sources("config/task.py"):
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == "TaskConfig":
                fields = (n.target for n in node.body if isinstance(n, ast.AnnAssign))
                return frozenset(field.id for field in fields if isinstance(field, ast.Name))
    return frozenset()


def harness_dir() -> Path | None:
    """Where lm-eval is; None where it is not installed."""
    spec = importlib.util.find_spec("lm_eval")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    return next((Path(folder) for folder in folders), None)


def nearest(name: str, known: Collection[str], otherwise: str) -> str:
    """A hint at the names that are like this one."""
    found = difflib.get_close_matches(name, known, n=_NAMES_SHOWN, cutoff=0.5)
    return f"did you mean {' or '.join(found)}?" if found else otherwise


@functools.cache
def _registered(sources: str, pattern: re.Pattern[str]) -> frozenset[str]:
    texts = (source.read_text() for source in _sources(sources))
    return frozenset(name for text in texts for name in pattern.findall(text))


def _sources(pattern: str) -> list[Path]:
    folder = harness_dir()
    return sorted(folder.glob(pattern)) if folder is not None else []
