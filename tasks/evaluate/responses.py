"""The model's responses on disk: what inference writes and scoring reads.

`responses/SHARD.jsonl`, one line a response: `{"key": [task, document, request type, index, repeat],
"prompt_sha256": ..., "response": ...}`. A file is renamed into place when it is whole: its presence
means that the shard is done. JSON keeps floats exact; whatever the model wrote is a JSON string.
`infer.json` holds how long inference took.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import EvaluationError
from configs.files import write_text
from configs.records import Record
from configs.rundir import EvaluationDir, read_record
from tasks.evaluate.plan import EvaluationPlan

Key = tuple[str, int, str, int, int]
"""Task, document, request type, index within the document, repeat."""


class ResponseRow(BaseModel):
    """One line of a shard's file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    key: Key
    prompt_sha256: str
    response: str | float | tuple[float, bool]
    """Generated text, a log-likelihood, or one with whether the continuation is the greedy one."""


class InferenceTimings(Record):
    """infer.json: how long inference took, over all of its tries."""

    started_at: float
    load_s: float = 0.0
    """Loading the model."""
    shards: dict[str, float]
    """Shard -> seconds."""

    @property
    def total_s(self) -> float:
        """Time in which the model was loaded and asked."""
        return self.load_s + sum(self.shards.values())


def shard_path(evaluation: EvaluationDir, shard: str) -> Path:
    """The file with a shard's responses."""
    return evaluation.responses_dir / f"{shard}.jsonl"


def timings_path(evaluation: EvaluationDir) -> Path:
    """The file with inference's times."""
    return evaluation.path / "infer.json"


def read_timings(evaluation: EvaluationDir) -> InferenceTimings | None:
    """Inference's times so far."""
    return read_record(timings_path(evaluation), InferenceTimings)


def write_shard(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a shard's responses durably, whole or not at all."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_shard(path: Path) -> Iterator[ResponseRow]:
    """The responses in a shard's file; EvaluationError for a line that is none."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield ResponseRow.model_validate_json(line)
            except ValidationError as error:
                raise EvaluationError(
                    f"{path}, line {number} is no response: remove the file and run inference again"
                ) from error


def read_responses(evaluation: EvaluationDir, plan: EvaluationPlan) -> dict[Key, ResponseRow]:
    """All responses of the plan; EvaluationError when a file is missing, foreign or holds another
    task's responses."""
    paths = {shard_path(evaluation, shard.name): task.task for task, shard in plan.shards()}
    foreign = sorted(set(evaluation.responses_dir.glob("*.jsonl")) - paths.keys())
    if foreign:
        raise EvaluationError(f"{foreign[0]} belongs to no shard of the plan: remove it")
    responses: dict[Key, ResponseRow] = {}
    for path, task in paths.items():
        if not path.is_file():
            raise EvaluationError(f"{path} is missing: inference has not finished")
        for row in read_shard(path):
            if row.key[0] != task or row.key in responses:
                what = "is there twice" if row.key in responses else f"is not of task {task!r}"
                raise EvaluationError(f"{path}: the response {list(row.key)} {what}")
            responses[row.key] = row
    return responses
