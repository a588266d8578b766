"""The model's responses on disk: what inference writes and scoring reads.

`responses/SHARD.jsonl`, one line a response: `{"key": [task, document, request type, index, repeat],
"prompt_sha256": ..., "response": ...}`. A file is renamed into place when it is whole: its presence
means that the shard is done. JSON keeps floats exact; whatever the model wrote is a JSON string.
`responses/unused/` holds shards of earlier plans that the present one has no use for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import EvaluationError
from configs.files import write_text
from configs.records import Record
from configs.rundir import EvaluationDir
from tasks.evaluate.plan import EvaluationPlan, ShardPlan

Key = tuple[str, int, str, int, int]
"""Task, document, request type, index within the document, repeat."""


class ResponseRow(BaseModel):
    """One line of a shard's file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    key: Key
    prompt_sha256: str
    response: str | float | tuple[float, bool]
    """Generated text, a log-likelihood, or one with whether the continuation is the greedy one."""


class Inferred(Record):
    """infer.json: all shards of the plan are done."""

    plan_sha256: str
    started_at: float
    ended_at: float


def shard_path(evaluation: EvaluationDir, shard: str) -> Path:
    """The file with a shard's responses."""
    return evaluation.responses_dir / f"{shard}.jsonl"


def unused_dir(evaluation: EvaluationDir) -> Path:
    """Shards of earlier plans."""
    return evaluation.responses_dir / "unused"


def failure_path(evaluation: EvaluationDir, shard: str) -> Path:
    """The file that says why a shard was given up (:mod:`tasks.evaluate.given_up`)."""
    return evaluation.responses_dir / f"{shard}.failed"


def is_done(evaluation: EvaluationDir, shard: ShardPlan) -> bool:
    """Whether the shard's responses are there, or it was given up."""
    return (
        shard_path(evaluation, shard.name).is_file()
        or failure_path(evaluation, shard.name).is_file()
    )


def shards_done(evaluation: EvaluationDir) -> set[str]:
    """Names of all shards whose responses are there, or that were given up."""
    return _named(evaluation, (".jsonl", ".failed"))


def shards_answered(evaluation: EvaluationDir) -> set[str]:
    """Names of all shards whose responses are there."""
    return _named(evaluation, (".jsonl",))


def _named(evaluation: EvaluationDir, suffixes: tuple[str, ...]) -> set[str]:
    with suppress(FileNotFoundError), os.scandir(evaluation.responses_dir) as entries:
        names = [entry.name for entry in entries]
        return {name.rpartition(".")[0] for name in names if name.endswith(suffixes)}
    return set()


class Pending:
    """Shards that are not done yet; asking again and again costs little, however many they are."""

    def __init__(self, evaluation: EvaluationDir, shards: Iterable[ShardPlan]) -> None:
        self._evaluation = evaluation
        self._shards = list(shards)

    def __bool__(self) -> bool:
        """Whether there is one left."""
        while self._shards and is_done(self._evaluation, self._shards[-1]):
            self._shards.pop()
        return bool(self._shards)

    def count(self) -> int:
        """How many are left."""
        self._shards = [s for s in self._shards if not is_done(self._evaluation, s)]
        return len(self._shards)


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


def read_responses(
    evaluation: EvaluationDir, plan: EvaluationPlan, tasks: Collection[str] | None = None
) -> dict[Key, ResponseRow]:
    """All responses of the plan, or of some of its tasks; EvaluationError when a file is missing,
    foreign, or holds more or less than its shard."""
    refuse_foreign(evaluation, plan)
    responses: dict[Key, ResponseRow] = {}
    for task, shard in plan.shards():
        if tasks is not None and task.task not in tasks:
            continue
        path, count = shard_path(evaluation, shard.name), len(responses)
        if not path.is_file():
            raise EvaluationError(f"{path} is missing: inference has not finished")
        for row in read_shard(path):
            if row.key[0] != task.task or row.key in responses:
                what = "is there twice" if row.key in responses else f"is not of task {task.task!r}"
                raise EvaluationError(f"{path}: the response {list(row.key)} {what}")
            responses[row.key] = row
        if (found := len(responses) - count) != shard.responses:
            raise EvaluationError(
                f"{path} has {found} responses, its shard {shard.responses}: remove the file and run "
                "inference again"
            )
    return responses


def refuse_foreign(evaluation: EvaluationDir, plan: EvaluationPlan) -> None:
    """EvaluationError when a file among the responses is no shard of the plan."""
    known = {shard_path(evaluation, shard.name) for _, shard in plan.shards()}
    foreign = sorted(set(evaluation.responses_dir.glob("*.jsonl")) - known)
    if foreign:
        raise EvaluationError(f"{foreign[0]} belongs to no shard of the plan: remove it")
