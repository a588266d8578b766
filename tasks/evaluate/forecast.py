"""Where measured times are kept, under which names, and what an evaluation adds to them.

The store is one file for all evaluations of a user on a machine: `OVERLAND_PRIORS`, else
`overland/priors.db` in the user's cache. Without a place to write it to, expectations start from
counts each time, and that is said.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir
from tasks.evaluate.devices import device_name
from tasks.evaluate.expected import TaskCounts, measured
from tasks.evaluate.model_folder import count_parameters, model_files
from tasks.evaluate.plan import Answering
from tasks.evaluate.priors import Measurement, Priors
from tasks.evaluate.times import Done

_VARIABLE = "OVERLAND_PRIORS"


@dataclass(frozen=True)
class Forecast:
    """What expectations are made of for one model."""

    priors: Priors
    backend: str
    parameters: float


@dataclass(frozen=True)
class PartTimes:
    """What one request type of one task took, and what it had to do."""

    counts: TaskCounts
    shards: Sequence[str]
    metric_s: float


def store_path() -> Path:
    """The file with the measured times."""
    given = os.environ.get(_VARIABLE)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(cache) / "overland" / "priors.db"


def forecast_for(evaluation: EvaluationDir, answering: Answering, fallback: Path) -> Forecast:
    """Out of the user's store, or of an empty one at `fallback` where that cannot be used."""
    try:
        priors = Priors(store_path())
    except EvaluationError as error:
        print(f"times are expected from counts alone: {error}", file=sys.stderr, flush=True)
        fallback.unlink(missing_ok=True)
        priors = Priors(fallback)
    return Forecast(priors, _backend(answering), count_parameters(evaluation.model_dir))


def remember(
    evaluation: EvaluationDir,
    answering: Answering,
    parts: Iterable[PartTimes],
    times: Sequence[Done],
) -> None:
    """Add what this evaluation has measured to the store."""
    backend, parameters = _backend(answering), count_parameters(evaluation.model_dir)
    shard_s: dict[str, float] = {t.name: t.time_s for t in times if t.kind == "shard"}
    found: list[Measurement] = []
    for part in parts:
        if all(name in shard_s for name in part.shards):
            infer_s = sum(shard_s[name] for name in part.shards)
            found += measured(
                part.counts,
                backend=backend,
                parameters=parameters,
                infer_s=infer_s,
                metric_s=part.metric_s,
            )
    folder = evaluation.model_dir
    size_bytes = sum((folder / name).stat().st_size for name in model_files(folder))
    loads: dict[str, list[float]] = defaultdict(list)
    for done in times:
        if done.kind == "load":
            loads[done.worker].append(done.time_s)
    for seconds in loads.values():
        found.append(Measurement("", "load", backend, parameters, size_bytes, seconds[-1]))
    try:
        Priors(store_path()).record(found)
    except EvaluationError as error:
        print(f"measured times are not kept: {error}", file=sys.stderr, flush=True)


def _backend(answering: Answering) -> str:
    if answering.device == "cpu":
        return f"{answering.backend}-cpu{answering.cpu_threads}-{answering.dtype}"
    return f"{answering.backend}-{device_name()}-{answering.dtype}"
