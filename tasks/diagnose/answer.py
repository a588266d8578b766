"""`overland diagnose`'s answer: for each input, what failed, where, and what to do about it.

An entry of the stage beside `task.py`: an answer must not wait for Prefect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from configs.errors import InputError
from configs.records import ActionKind, AttemptRecord, Verdict
from tasks.diagnose.classes import Category
from tasks.diagnose.confirmed import confirm, remember
from tasks.diagnose.diagnose import diagnose_attempt, diagnose_lines
from tasks.diagnose.inputs import STDIN, LogInput, find_inputs
from tasks.diagnose.logs import LogLine, attempt_log_files, read_log

_STDIN_PATH = Path("/dev/stdin")
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
        except InputError as error:
            yield error
            continue
        for log in inputs:
            try:
                found = diagnose_input(log)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                yield InputError(f"{error.filename or log.name} cannot be read: {reason}")
                continue
            remember(found.case_id, found.model_dump(by_alias=True))
            yield found


def confirm_diagnosis(case_id: str, failure_class: str) -> dict[str, Any]:
    """Keep a diagnosis that was given as a case of the class that a person says."""
    return confirm(case_id, failure_class)


def diagnose_input(log: LogInput) -> Diagnosis:
    """The diagnosis of one input."""
    counter = _Counter()
    if log.attempt is not None:
        record = log.attempt.record()
        if record is None:
            raise InputError(f"{log.name} has no attempt.json")
        return _of_attempt(log, record)
    if log.name == STDIN:
        verdict = diagnose_lines(counter.count(read_log(_STDIN_PATH, STDIN)))
    else:
        lines = chain.from_iterable(counter.count(read_log(p, str(p))) for p in log.files)
        verdict = diagnose_lines(lines)
    return _diagnosis(log, verdict, counter.lines)


def _of_attempt(log: LogInput, record: AttemptRecord) -> Diagnosis:
    assert log.attempt is not None
    counter = _Counter()
    for path in attempt_log_files(log.attempt.path):
        for _ in counter.count(read_log(path)):
            pass
    verdict = log.attempt.verdict() or diagnose_attempt(log.attempt, record)
    if verdict.root_cause_file is not None:
        file = str(log.attempt.path / verdict.root_cause_file)
        verdict = verdict.model_copy(update={"root_cause_file": file})
    return _diagnosis(log, verdict, counter.lines)


def _diagnosis(log: LogInput, verdict: Verdict, lines: int) -> Diagnosis:
    return Diagnosis(
        file=verdict.root_cause_file or log.name,
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
        kept_lines=len(verdict.evidence),
    )


class _Counter:
    """Counts the lines of all files that pass through."""

    def __init__(self) -> None:
        self.lines = 0

    def count(self, lines: Iterator[LogLine]) -> Iterator[LogLine]:
        last = 0
        for line in lines:
            last = line.number
            yield line
        self.lines += last
