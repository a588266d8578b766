"""All requests of a task on disk, as they were enumerated once, and the documents they were made of.

`requests/NNN_TASK.jsonl`, one line a request: [document, request type, index, repeats, SHA-256,
arguments]. Requests of one type stand together, in lm-eval's order. Workers read their shards' lines
out of it: they load no data set, and cannot come to other prompts. `documents/NNN_TASK.jsonl` holds
the task's documents, where JSON keeps them as they are, so that scoring sees the same ones.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import EvaluationError
from configs.files import write_text
from configs.rundir import EvaluationDir
from tasks.evaluate.enumeration import request_sha256
from tasks.evaluate.harness import Instance


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request, without its document."""

    document: int
    request_type: str
    index: int
    repeats: int
    sha256: str
    arguments: list[Any]

    @property
    def is_sampled(self) -> bool:
        """Whether its answer is drawn at random, so that it depends on what was drawn before."""
        settings = self.arguments[1] if self.request_type == "generate_until" else {}
        return bool(settings.get("do_sample")) or (settings.get("temperature") or 0) > 0

    def fields(self) -> list[Any]:
        """As its line holds it."""
        return [
            self.document,
            self.request_type,
            self.index,
            self.repeats,
            self.sha256,
            self.arguments,
        ]

    def as_instance(self, task: str) -> Instance:
        """As lm-eval's models take it."""
        return Instance(
            request_type=self.request_type,
            doc={},
            arguments=tuple(self.arguments),
            idx=self.index,
            metadata=(task, self.document, self.repeats),
        )


def requests_path(evaluation: EvaluationDir, file: str) -> Path:
    """The file with a task's requests."""
    return evaluation.requests_dir / f"{file}.jsonl"


def documents_path(evaluation: EvaluationDir, file: str) -> Path:
    """The file with a task's documents."""
    return evaluation.documents_dir / f"{file}.jsonl"


def rows_of(requests: Sequence[Instance]) -> list[RequestRow]:
    """The requests as rows: types in the order of their first request, each type's in lm-eval's order."""
    types = list(dict.fromkeys(request.request_type for request in requests))
    rows = [
        RequestRow(
            request.doc_id,
            request.request_type,
            request.idx,
            request.repeats,
            request_sha256(request),
            list(request.args),
        )
        for request in requests
    ]
    return sorted(rows, key=lambda row: types.index(row.request_type))


def write_requests(path: Path, rows: Iterable[RequestRow]) -> list[int]:
    """Write the rows; returns the byte offset of each, and after them that of the end."""
    lines = [json.dumps(row.fields()) + "\n" for row in rows]  # ASCII: a character is a byte
    write_text(path, "".join(lines))
    return list(itertools.accumulate(map(len, lines), initial=0))


def read_requests(path: Path, start: int = 0, stop: int | None = None) -> list[RequestRow]:
    """The rows from byte `start` to byte `stop`."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read() if stop is None else file.read(stop - start)
        return [RequestRow(*json.loads(line)) for line in data.splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise EvaluationError(
            f"{path} is missing or damaged: remove plan.json beside it and run again"
        ) from error


def write_documents(path: Path, documents: Iterable[dict[str, Any]]) -> bool:
    """Write the documents if JSON gives all of them back unchanged; returns whether it does."""
    lines = []
    for document in documents:
        try:
            line = json.dumps(document)
        except (TypeError, ValueError):
            return False
        if repr(json.loads(line)) != repr(document):
            return False
        lines.append(line + "\n")
    write_text(path, "".join(lines))
    return True


def read_documents(path: Path) -> Iterator[dict[str, Any]]:
    """The documents of a task."""
    with open(path, "rb") as file:
        for line in file:
            yield json.loads(line)
