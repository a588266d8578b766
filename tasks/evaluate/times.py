"""What took how long: each worker's and scorer's own file in `times/`, one line a thing done.

These are the actual times that stand beside the plan's expected ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from configs.files import append_json_line, read_json_lines
from configs.node import node_name
from configs.records import Record
from configs.rundir import EvaluationDir


class Done(Record):
    """One thing that somebody did."""

    kind: Literal["stage", "load", "shard", "score"]
    name: str
    """The shard's or the target's."""
    worker: str
    started_at: float
    ended_at: float
    requests: int = 0

    @property
    def time_s(self) -> float:
        return self.ended_at - self.started_at


def error_path(evaluation: EvaluationDir, worker: str) -> Path:
    """Where a worker that cannot go on says why."""
    return evaluation.times_dir / f"{node_name()}-{worker}.error"


def record(evaluation: EvaluationDir, done: Done) -> None:
    """Append to the worker's file."""
    evaluation.times_dir.mkdir(parents=True, exist_ok=True)
    path = evaluation.times_dir / f"{done.worker}.jsonl"
    append_json_line(path, json.loads(done.model_dump_json()))


def read_times(evaluation: EvaluationDir) -> list[Done]:
    """All that was done, in the order of its begin."""
    done = [
        Done.model_validate(value)
        for path in sorted(evaluation.times_dir.glob("*.jsonl"))
        for value, _ in read_json_lines(path)
    ]
    return sorted(done, key=lambda d: d.started_at)


def covered_s(times: Iterable[Done], beside: Iterable[Done] = ()) -> float:
    """Wall time in which any of `times` was done and none of `beside`."""
    return _union_s([*times, *beside]) - _union_s(beside)


def _union_s(times: Iterable[Done]) -> float:
    total_s, end = 0.0, 0.0
    for done in sorted(times, key=lambda d: d.started_at):
        total_s += max(0.0, done.ended_at - max(done.started_at, end))
        end = max(end, done.ended_at)
    return total_s
