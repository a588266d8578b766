"""The tasks that a simulation runs: public benchmarks by their sizes, or anyone's own from a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
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
_MOST_S = 1e12
_MOST_SHOWN = 10
"""Mistakes of one file; who has more has made the same again and again."""
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
        numbered = [(reader.line_num, row) for row in islice(reader, MOST_TASKS + 1)]
        rows = [row for _, row in numbered]
        columns = [name.strip() for name in (rows[0] if rows else {}) if name]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--workload {path} cannot be read as CSV: {reason}") from error
    _check_columns(path, text, columns, has_rows=bool(rows))
    if len(rows) > MOST_TASKS:
        raise InputError(f"--workload {path} has more than {MOST_TASKS:,} tasks: give it fewer")
    return _tasks(path, numbered)


def _check_columns(path: Path, text: str, columns: Sequence[str], *, has_rows: bool) -> None:
    """InputError for a file whose first line does not name what is needed."""
    first = text.partition("\n")[0].strip()
    wanted = f"its columns must be {', '.join(COLUMNS)}"
    for mark, what in ((";", "semicolons"), ("\t", "tabs")):
        if first.count(mark) >= len(COLUMNS) - 1 and "," not in first:
            raise InputError(
                f"--workload {path} is separated by {what}: save it with commas; {wanted}"
            )
    if first and not any(name in first for name in COLUMNS) and any(c.isdigit() for c in first):
        raise InputError(
            f"--workload {path} has no header, its first line is {first[:80]!r}: "
            f"write {','.join(COLUMNS)} above it"
        )
    missing = [name for name in COLUMNS if name not in columns]
    if not has_rows:
        raise InputError(f"--workload {path} has no rows below its first line: {wanted}")
    if missing:
        raise InputError(f"--workload {path} has no column {' and no '.join(missing)}: {wanted}")


def _tasks(path: Path, rows: Sequence[tuple[int, dict[str | None, Any]]]) -> list[SimulatedTask]:
    """The rows' tasks; InputError with a line for each mistake, up to some."""
    tasks: dict[str, SimulatedTask] = {}
    problems: list[str] = []
    for line, row in rows:
        values = {name.strip(): (text or "").strip() for name, text in row.items() if name}
        found = [*_problems(values, too_long=None in row)]
        if (name := values["task"]) in tasks:
            found.append(f"there is task {name!r} twice")
        problems += (f"--workload {path}, line {line}: {problem}" for problem in found)
        if not found:
            item = WorkItem(
                name,
                int(float(values["requests"])),
                float(values["infer_s"]),
                float(values["metric_s"]),
            )
            tasks[name] = SimulatedTask(item, _GENERATION_FACTOR)
    if len(problems) > _MOST_SHOWN:
        left = len(problems) - _MOST_SHOWN
        problems[_MOST_SHOWN:] = [f"--workload {path}: and {left:,} more mistakes like these"]
    if problems:
        raise InputError("\n".join(problems))
    return list(tasks.values())


def _problems(values: Mapping[str, str], *, too_long: bool) -> Iterator[str]:
    """What is wrong with a row."""
    if too_long:
        yield "it has more values than the first line has columns"
    if not values["task"]:
        yield "the task has no name"
    requests = _number(values["requests"])
    if requests is None or requests != int(requests) or not 1 <= requests <= MOST_REQUESTS:
        yield (
            f"requests must be a whole number from 1 to {MOST_REQUESTS:,};"
            f" it is {values['requests'] or 'empty'}"
        )
    for column in ("infer_s", "metric_s"):
        value = _number(values[column])
        if value is None or not 0 <= value <= _MOST_S:
            yield f"{column} must be a number from 0 to 1e12; it is {values[column] or 'empty'}"


def _number(text: str) -> float | None:
    """The finite number that the text is."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
