"""Where measured times are kept, under which names, and what an evaluation adds to them.

The store is one file for all evaluations of a user on a machine: `OVERLAND_PRIORS`, else
`overland/priors.db` in the user's cache. Without a place to write it to, expectations start from
counts each time, and that is said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.errors import EvaluationError
from configs.records import Record
from configs.rundir import EvaluationDir, read_record, write_record
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
    target: str
    shards: Sequence[str]
    metric_s: float


class Remembered(Record):
    """times/remembered.json: up to when this evaluation's times are in the store."""

    until: float


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
    """Add what this evaluation has measured to the store: of what happened since the last time."""
    known = read_record(_remembered_path(evaluation), Remembered)
    new = [t for t in times if known is None or t.ended_at > known.until]
    if not new or not evaluation.model_dir.is_dir():  # how large it is is not known any more
        return
    backend, parameters = _backend(answering), count_parameters(evaluation.model_dir)
    found = list(_of_parts(parts, times, new, backend, parameters))
    loads = {done.worker: done.time_s for done in new if done.kind == "load"}
    if loads:
        folder = evaluation.model_dir
        size_bytes = sum((folder / name).stat().st_size for name in model_files(folder))
        for seconds in loads.values():
            found.append(Measurement("", "load", backend, parameters, size_bytes, seconds))
    try:
        Priors(store_path()).record(found)
    except EvaluationError as error:
        print(f"measured times are not kept: {error}", file=sys.stderr, flush=True)
    write_record(_remembered_path(evaluation), Remembered(until=max(t.ended_at for t in new)))


def _of_parts(
    parts: Iterable[PartTimes],
    times: Sequence[Done],
    new: Sequence[Done],
    backend: str,
    parameters: float,
) -> Iterator[Measurement]:
    """Answering and metrics of which something is new."""
    shard_s = {t.name: t.time_s for t in times if t.kind == "shard"}
    new_shards = {t.name for t in new if t.kind == "shard"}
    new_scores = {t.name for t in new if t.kind == "score"}
    for part in parts:
        is_known = new_shards & set(part.shards) and all(name in shard_s for name in part.shards)
        yield from measured(
            part.counts,
            backend=backend,
            parameters=parameters,
            infer_s=sum(shard_s[name] for name in part.shards) if is_known else None,
            metric_s=part.metric_s if part.target in new_scores else None,
        )


def _remembered_path(evaluation: EvaluationDir) -> Path:
    return evaluation.times_dir / "remembered.json"


def _backend(answering: Answering) -> str:
    if answering.device == "cpu":
        return f"{answering.backend}-cpu{answering.cpu_threads}-{answering.dtype}"
    return f"{answering.backend}-{device_name()}-{answering.dtype}"
