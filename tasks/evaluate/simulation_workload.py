"""The tasks that a simulation runs: public benchmarks by their sizes, or anyone's own from a CSV file."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from configs.errors import InputError
from tasks.evaluate.schedule_types import WorkItem

BENCHMARKS = Path(__file__).with_name("benchmark_sizes.yaml")
MOST_TASKS = 5_000
MOST_REQUESTS = 10**9
MOST_CHARACTERS = 16 << 20
COLUMNS = ("task", "requests", "infer_s", "metric_s")
_GENERATION_FACTOR = 20
_LONG_FACTOR = 10
_LONG_NAMES = ("bbh", "gsm8k", "math", "strategyqa")
"""What OpenCompass's SizePartitioner makes of generation, and of these tasks on top."""


@dataclass(frozen=True, slots=True)
class SimulatedTask:
    """A task, and what a partitioner that knows no times takes it for."""

    item: WorkItem
    cost_factor: int
    """OpenCompass's: times the number of requests is what it calls a task's size."""


def read_benchmarks(tasks: int | None = None) -> list[SimulatedTask]:
    """The first `tasks` of the public benchmarks (all), which are in the order of their names."""
    content = yaml.safe_load(BENCHMARKS.read_text())
    known: dict[str, dict[str, Any]] = content["benchmarks"]
    if tasks is not None and not 1 <= tasks <= len(known):
        raise InputError(
            f"--tasks must be from 1 to {len(known)}, the benchmarks whose sizes are known; it is {tasks}"
        )
    assumed = content["assumptions"]
    return [_benchmark(name, row, assumed) for name, row in list(known.items())[:tasks]]


def _benchmark(name: str, row: dict[str, Any], assumed: dict[str, Any]) -> SimulatedTask:
    documents: int = row["documents"]
    prefill_s = row["forwards"] * row["prompt"] / assumed["prefill_tokens_per_s"]
    decode_s = row["output"] / assumed["decode_tokens_per_s"]
    item = WorkItem(
        task=name,
        requests=documents,
        infer_s=documents * (prefill_s + decode_s),
        metric_s=documents * assumed["metric_s_per_document"][row["metric"]],
    )
    factor = _GENERATION_FACTOR if row["output"] else row["forwards"]
    return SimulatedTask(item, factor * (_LONG_FACTOR if name.startswith(_LONG_NAMES) else 1))


def read_workload(path: Path) -> list[SimulatedTask]:
    """The tasks of a CSV file with the columns task, requests, infer_s, metric_s. At most MOST_TASKS."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read(MOST_CHARACTERS + 1)  # it may be a pipe or a device without end
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"--workload {path} is longer than {MOST_CHARACTERS >> 20} MiB")
        reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
        rows = list(islice(reader, MOST_TASKS + 1))
        columns = [name.strip() for name in (rows[0] if rows else {}) if name]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--workload {path} cannot be read as CSV: {reason}") from error
    missing = [name for name in COLUMNS if name not in columns]
    if not rows or missing:
        what = f"has no column {missing[0]}" if rows else "has no rows below its first line"
        raise InputError(f"--workload {path} {what}: its columns must be {', '.join(COLUMNS)}")
    if len(rows) > MOST_TASKS:
        raise InputError(f"--workload {path} has more than {MOST_TASKS:,} tasks: give it fewer")
    tasks = [_row(path, line, row) for line, row in enumerate(rows, start=2)]
    seen: set[str] = set()
    for task in tasks:
        if task.item.task in seen:
            raise InputError(f"--workload {path} has task {task.item.task!r} twice")
        seen.add(task.item.task)
    return tasks


def _row(path: Path, line: int, row: dict[str | None, Any]) -> SimulatedTask:
    values = {name.strip(): (text or "").strip() for name, text in row.items() if name}
    where = f"--workload {path}, line {line}"
    if None in row:
        raise InputError(f"{where}: it has more values than the first line has columns")
    if not values["task"]:
        raise InputError(f"{where}: the task has no name")
    requests = _number(where, "requests", values["requests"])
    if requests != int(requests) or not 1 <= requests <= MOST_REQUESTS:
        raise InputError(
            f"{where}: requests must be a whole number from 1 to {MOST_REQUESTS:,};"
            f" it is {values['requests']}"
        )
    infer_s = _number(where, "infer_s", values["infer_s"])
    metric_s = _number(where, "metric_s", values["metric_s"])
    return SimulatedTask(
        WorkItem(values["task"], int(requests), infer_s, metric_s), _GENERATION_FACTOR
    )


def _number(where: str, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 <= value <= 1e12):
        raise InputError(
            f"{where}: {column} must be a number from 0 to 1e12; it is {text or 'empty'}"
        )
    return value
