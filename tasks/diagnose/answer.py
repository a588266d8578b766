"""`overland diagnose`'s answer: for each input, what failed, where, and what to do about it.

An entry of the stage beside `task.py`: an answer must not wait for Prefect.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from configs.errors import InputError
from configs.records import ActionKind, Verdict
from configs.rundir import AttemptDir
from tasks.diagnose.classes import Category
from tasks.diagnose.compress import compress
from tasks.diagnose.confirmed import cases_folder, confirm, remember
from tasks.diagnose.diagnose import diagnose_attempt, diagnose_scan
from tasks.diagnose.fast import scan_files, size_bytes
from tasks.diagnose.inputs import LogInput, find_inputs
from tasks.diagnose.logs import attempt_log_files
from tasks.diagnose.sources import STDIN, Source, source_of
from tasks.diagnose.unsure import look_further

_MAX_COMPRESSED_BYTES = 64 << 20
_ID_DIGITS = 10


class Diagnosis(BaseModel):
    """The answer for one input; its JSON has these keys and no other."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    file: str
    """The file of the root cause's line, or the input."""
    failure_class: str = Field(serialization_alias="class")
    category: Category
    root_cause_line: int | None
    root_cause_text: str
    faulty_rank: int | None
    faulty_node: str | None
    action: ActionKind
    confidence: float
    method: str
    evidence: list[str]
    mitigation: str
    lines: int
    kept_lines: int

    @property
    def case_id(self) -> str:
        """Names the diagnosis, for `--confirm`: the same logs and verdict have the same."""
        text = "\0".join((self.file, str(self.lines), self.root_cause_text))
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


def answer(paths: Sequence[str]) -> Iterator[Diagnosis | InputError]:
    """The diagnosis of each input in turn; an error in place of one that cannot be read."""
    for path in paths:
        try:
            inputs = find_inputs([path])
        except (InputError, OSError) as error:
            yield _unreadable(path, error)
            continue
        for log in inputs:
            try:
                found = diagnose_input(log)
            except (InputError, OSError) as error:
                yield _unreadable(log.name, error)
                continue
            remember(found.case_id, found.model_dump(by_alias=True))
            yield found


def _unreadable(name: str, error: InputError | OSError) -> InputError:
    if isinstance(error, InputError):
        return error
    reason = error.strerror or type(error).__name__
    return InputError(f"{error.filename or name} cannot be read: {reason}")


def confirm_diagnosis(case_id: str, failure_class: str) -> dict[str, Any]:
    """Keep a diagnosis that was given as a case of the class that a person says."""
    return confirm(case_id, failure_class)


def diagnose_input(log: LogInput) -> Diagnosis:
    """The diagnosis of one input."""
    if log.attempt is not None:
        return _of_attempt(log.name, log.attempt)
    if log.name == STDIN:
        with _spooled_input() as path:
            return _of_files(log, [Source(path, STDIN)])
    return _of_files(log, [source_of(path, str(path)) for path in log.files])


def _of_files(log: LogInput, sources: Sequence[Source]) -> Diagnosis:
    verdict = look_further(diagnose_scan(scan_files(sources, learned=cases_folder())), sources)
    return _diagnosis(log.name, verdict, *_line_counts(sources))


def _of_attempt(name: str, attempt: AttemptDir) -> Diagnosis:
    record = attempt.record()
    if record is None:
        raise InputError(f"{name} has no attempt.json")
    verdict = attempt.verdict() or diagnose_attempt(attempt, record)
    if verdict.root_cause_file is not None:
        file = str(attempt.path / verdict.root_cause_file)
        verdict = verdict.model_copy(update={"root_cause_file": file})
    sources = [source_of(path) for path in attempt_log_files(attempt.path)]
    return _diagnosis(name, verdict, *_line_counts(sources))


def _line_counts(sources: Sequence[Source]) -> tuple[int, int]:
    """Lines of the logs, and those that compression keeps; of very large ones the first files stand for all."""
    counted = list(sources)
    while len(counted) > 1 and size_bytes(counted) > _MAX_COMPRESSED_BYTES:
        counted = counted[: len(counted) // 2]
    compressed = compress(counted)
    share = size_bytes(sources) / max(1, size_bytes(counted))
    return round(compressed.lines * share), round(compressed.kept_lines * share)


@contextmanager
def _spooled_input() -> Iterator[Path]:
    """Standard input as a file: it is read more than once."""
    with NamedTemporaryFile(prefix="overland-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        yield Path(file.name)


def _diagnosis(name: str, verdict: Verdict, lines: int, kept_lines: int) -> Diagnosis:
    return Diagnosis(
        file=verdict.root_cause_file or name,
        failure_class=verdict.failure_class,
        category=verdict.category,
        root_cause_line=verdict.root_cause_line,
        root_cause_text=verdict.root_cause_text,
        faulty_rank=verdict.faulty_rank,
        faulty_node=verdict.faulty_node,
        action=verdict.action,
        confidence=verdict.confidence,
        method=verdict.method,
        evidence=verdict.evidence,
        mitigation=verdict.mitigation,
        lines=lines,
        kept_lines=kept_lines,
    )
