"""Cuts what is not done into shards and gives them to workers, by what everything is expected to take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.evaluate.expected import TaskCounts, expected_item
from tasks.evaluate.forecast import Forecast
from tasks.evaluate.manifest import RequestRow
from tasks.evaluate.schedule import PlanOptions, SchedulePlan, Worker, WorkItem, plan_shards
from tasks.evaluate.shards import Range, TaskRows, join

_CHARACTERS_A_TOKEN = 4
_DEFAULT_GENERATED_TOKENS = 256  # lm-eval's own
_SHARDS_A_WORKER = 4
"""At least so many, so that the death of a worker and a wrong expectation cost little."""
_MAX_SHARDS_A_WORKER = 64
"""Work is not cut finer than this many equal shards would be."""


@dataclass(frozen=True)
class Cut:
    """One shard to be."""

    task: str
    rows: Range
    worker: str
    expected_s: float


@dataclass(frozen=True)
class Cuts:
    """All shards to be, in the order in which they are to begin."""

    shards: list[Cut]
    metric_s: dict[str, float]
    """Task -> how long its metric is expected to take."""
    schedule: SchedulePlan | None
    """None: nothing is left to be answered."""


@dataclass(frozen=True)
class _Part:
    """What one task has left of one request type: an item of the planner."""

    task: str
    pieces: list[Range]
    item: WorkItem


def counts_of(task: str, rows: Sequence[RequestRow]) -> TaskCounts:
    """What is known of requests before they run: of one type, in one task."""
    texts = (a for row in rows for a in row.arguments * row.repeats if isinstance(a, str))
    return TaskCounts(
        task=task,
        documents=len({row.document for row in rows}),
        prompt_tokens=sum(map(len, texts)) / _CHARACTERS_A_TOKEN,
        generated_tokens=sum(_generated(row) * row.repeats for row in rows),
    )


def by_type(rows: TaskRows) -> dict[str, tuple[str, list[RequestRow]]]:
    """Request type -> the name under which its times are kept, and the rows."""
    groups = itertools.groupby(rows.rows, key=lambda row: row.request_type)
    found = {request_type: list(group) for request_type, group in groups}
    return {
        request_type: (rows.task if len(found) == 1 else f"{rows.task} {request_type}", group)
        for request_type, group in found.items()
    }


def cut(
    tasks: Sequence[tuple[TaskRows, Sequence[Range]]],
    workers: Sequence[str],
    cpu_cores: int,
    forecast: Forecast,
) -> Cuts:
    """Shards for what `tasks` have beside the ranges that are taken.

    Never within a document, and never of two request types.
    """
    parts: dict[str, _Part] = {}
    metric_s: dict[str, float] = {}
    for rows, taken in tasks:
        for name, part in _parts(rows, taken, forecast):
            parts[name] = part
            metric_s[rows.task] = metric_s.get(rows.task, 0.0) + part.item.metric_s
    if not parts:
        return Cuts([], metric_s, None)
    items = [part.item for part in parts.values()]
    share_s = sum(item.infer_s for item in items) / len(workers)
    options = PlanOptions(
        min_shard_s=share_s / _MAX_SHARDS_A_WORKER, max_shard_s=share_s / _SHARDS_A_WORKER
    )
    here = [Worker(name, node="") for name in workers]
    schedule = plan_shards(items, here, cpu_cores=cpu_cores, options=options)
    shards = []
    for planned in sorted(schedule.shards, key=lambda shard: shard.start_s):
        part = parts[planned.task]
        pieces = part.pieces[planned.start : planned.stop]
        for joined in join(pieces):
            inside = sum(joined[0] <= start < joined[1] for start, _ in pieces)
            expected_s = (planned.end_s - planned.start_s) * inside / len(pieces)
            shards.append(Cut(part.task, joined, planned.worker, expected_s))
    return Cuts(shards, metric_s, schedule)


def _parts(rows: TaskRows, taken: Sequence[Range], forecast: Forecast) -> list[tuple[str, _Part]]:
    """The planner's items of one task, under their names. Its metric follows the last of them."""
    named = by_type(rows)
    found: list[tuple[str, _Part]] = []
    units = rows.units(taken)
    for number, pieces in enumerate(units, start=1):
        request_type = rows.rows[pieces[0][0]].request_type
        name, of_type = named[request_type]
        left = [row for piece in pieces for row in rows.rows[slice(*piece)]]
        whole = expected_item(
            forecast.priors,
            counts_of(name, of_type),
            backend=forecast.backend,
            parameters=forecast.parameters,
        )
        share = len(left) / len(of_type)
        item = WorkItem(
            task=name,
            requests=len(pieces),
            infer_s=whole.infer_s * share,
            metric_s=whole.metric_s if number == len(units) else 0.0,
        )
        found.append((name, _Part(rows.task, pieces, item)))
    return found


def _generated(row: RequestRow) -> float:
    if row.request_type != "generate_until":
        return 0.0
    settings = row.arguments[1] if len(row.arguments) > 1 else {}
    limit = settings.get("max_gen_toks") or settings.get("max_new_tokens")
    return float(limit or _DEFAULT_GENERATED_TOKENS)
