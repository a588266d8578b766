"""`overland diagnose`'s answer: for each input, what failed, where, and what to do about it.

An entry of the stage beside `task.py`: an answer must not wait for Prefect.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import ConfigError, InputError
from configs.records import ActionKind, AttemptRecord, Verdict
from configs.rundir import AttemptDir
from tasks.diagnose.binary import is_binary
from tasks.diagnose.classes import Category
from tasks.diagnose.compress import Compressor, compress
from tasks.diagnose.compressed import Compressed
from tasks.diagnose.confirmed import confirm, remember
from tasks.diagnose.diagnose import diagnose_attempt, diagnose_scan
from tasks.diagnose.failure_agent import is_unsure
from tasks.diagnose.inputs import Folder, LogInput, find_inputs
from tasks.diagnose.learned_rules import learned_rules
from tasks.diagnose.logs import attempt_log_files
from tasks.diagnose.model_protocol import Model
from tasks.diagnose.recognised import Fingerprint, as_confirmed, fingerprint_of
from tasks.diagnose.rules import Rule
from tasks.diagnose.scan_files import reads_alone, scan_files, size_bytes
from tasks.diagnose.second_look import look_further
from tasks.diagnose.second_opinion import with_second_opinion
from tasks.diagnose.sources import STDIN, Source, printable, source_of, why_unreadable
from tasks.diagnose.verdicts import with_notes

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
    fingerprint: Fingerprint = Field(exclude=True)
    files: int = Field(exclude=True)
    """That the logs are in."""
    folder: Folder | None = Field(default=None, exclude=True)
    """Of unrelated logs, that this one was found in."""
    unreadable: dict[str, str] = Field(default_factory=dict, exclude=True)
    """Files of the input that could not be read, and why."""
    can_be_confirmed: bool = Field(default=True, exclude=True)
    """Whether it is noted in the store's folder, for `--confirm`."""

    @property
    def case_id(self) -> str:
        """Names the diagnosis, for `--confirm`: the same logs have the same."""
        return self.fingerprint.exact[:_ID_DIGITS]


def answer(
    paths: Sequence[str], settings: DiagnoseConfig | None = None, model: Model | None = None
) -> Iterator[Diagnosis | InputError]:
    """The diagnosis of each input in turn; an error in place of one that cannot be read."""
    settings = settings or DiagnoseConfig()
    for path in paths:
        try:
            inputs = find_inputs([path])
        except (InputError, OSError) as error:
            yield _unreadable(path, error)
            continue
        for log in inputs:
            try:
                found = diagnose_input(log, settings, model)
            except (InputError, OSError) as error:
                yield _unreadable(log.name, error)
                continue
            kept = remember(
                found.case_id,
                found.model_dump(by_alias=True),
                folder=settings.resolved_store(),
                names=(log.name,),
                fingerprint=found.fingerprint.model_dump(),
            )
            yield found.model_copy(update={"can_be_confirmed": kept, "folder": log.folder})


def _unreadable(name: str, error: InputError | OSError) -> InputError:
    return InputError(why_unreadable(name, error))


def confirm_diagnosis(
    case_id: str, failure_class: str, settings: DiagnoseConfig | None = None
) -> dict[str, Any]:
    """Keep a diagnosis that was given as a case of the class that a person says."""
    return confirm(case_id, failure_class, (settings or DiagnoseConfig()).resolved_store())


def diagnose_input(log: LogInput, settings: DiagnoseConfig, model: Model | None) -> Diagnosis:
    """The diagnosis of one input."""
    if log.attempt is not None:
        return _of_attempt(log.name, log.attempt, settings)
    if log.name == STDIN:
        with _spooled(_standard_input()) as path:
            return _of_files(log, [Source(path, STDIN)], settings, model)
    if log.files[0].is_fifo():
        with open(log.files[0], "rb") as pipe, _spooled(pipe) as path:
            return _of_files(log, [Source(path, log.name)], settings, model)
    return _of_files(log, [source_of(path) for path in log.files], settings, model)


def _of_files(
    log: LogInput, sources: Sequence[Source], settings: DiagnoseConfig, model: Model | None
) -> Diagnosis:
    store = settings.resolved_store()
    if len(sources) == 1 and sources[0].path is not None and is_binary(sources[0].path):
        raise InputError(f"{log.name} is a binary file, no log: give the text that the job printed")
    learned, notes = _learned_in(store)
    compressor = Compressor() if reads_alone(sources) else None
    scan = scan_files(sources, learned=learned, compressor=compressor)
    readable = [source for source in sources if source.name not in scan.unreadable]
    if not readable:
        raise InputError(next(iter(scan.unreadable.values())))
    verdict = diagnose_scan(scan)
    compressed = compress(_first(readable)) if compressor is None else compressor.result()
    is_whole = compressor is not None or len(compressed.sources) == len(readable)
    if is_whole:
        verdict = with_second_opinion(verdict, scan, compressed)
    counted = _counted(compressed, readable, lines=scan.lines_read)
    if counted.kept_lines:  # without any, no other log can be told to be like it
        unsure = is_unsure(verdict)
        confirmed = as_confirmed(verdict, counted.fingerprint, store, unsure=unsure)
        if confirmed is None and unsure:
            whole = compressed if is_whole else compress(readable)
            verdict = look_further(verdict, whole, settings, model)
        verdict = confirmed or verdict
    verdict = with_notes(verdict, [*scan.notes, *notes])
    found = _diagnosis(log.name, verdict, counted)
    return found.model_copy(update={"unreadable": scan.unreadable})


def _of_attempt(name: str, attempt: AttemptDir, settings: DiagnoseConfig) -> Diagnosis:
    record = attempt.record()
    if record is None:
        raise InputError(f"{name} has no attempt.json")
    store = settings.resolved_store()
    verdict = _verdict_on(attempt, record, store)
    if verdict.root_cause_file is not None:
        file = printable(str(attempt.path / verdict.root_cause_file))
        verdict = verdict.model_copy(update={"root_cause_file": file})
    sources = [source_of(path) for path in attempt_log_files(attempt.path)]
    compressed = compress(_first(sources))
    found = _counted(compressed, sources)
    confirmed = None
    if found.kept_lines:
        confirmed = as_confirmed(verdict, found.fingerprint, store, unsure=False)
    return _diagnosis(name, confirmed or verdict, found)


def _verdict_on(attempt: AttemptDir, record: AttemptRecord, store: Path) -> Verdict:
    """The verdict on record, which the run went by; of an unknown failure, what rules make of it now."""
    recorded = attempt.verdict()
    if recorded is not None and recorded.failure_class != "Unknown":
        return recorded
    learned, notes = _learned_in(store)
    verdict = with_notes(diagnose_attempt(attempt, record, learned), notes)
    return recorded if recorded is not None and verdict.failure_class == "Unknown" else verdict


def _learned_in(store: Path) -> tuple[list[Rule], list[str]]:
    """The learned rules of a folder; none, and why, when somebody has edited them."""
    try:
        return learned_rules(store), []
    except ConfigError as error:
        return [], [f"learned rules are left out: {error}"]


@dataclass(frozen=True)
class _Counted:
    """What compression tells of the logs."""

    lines: int
    kept_lines: int
    fingerprint: Fingerprint
    files: int


def _counted(
    compressed: Compressed, sources: Sequence[Source], lines: int | None = None
) -> _Counted:
    """Lines of the logs, and those that compression keeps. Where it has seen the first files alone, those
    stand for all; `lines`: as a scan of all has counted them. `sources`: those that could be read.

    To compress 1 GB takes longer than a verdict on it, which needs none of that.
    """
    names = {source.name for source in sources}
    seen = [source for source in compressed.sources if source.name in names]
    share = size_bytes(sources) / max(1, size_bytes(seen))
    return _Counted(
        round(compressed.lines * share) if lines is None else lines,
        round(compressed.kept_lines * share),
        fingerprint_of(compressed),
        len(sources),
    )


def _first(sources: Sequence[Source]) -> Sequence[Source]:
    """As many of the first files as are compressed beside a verdict."""
    first = sources
    while len(first) > 1 and size_bytes(first) > _MAX_COMPRESSED_BYTES:
        first = first[: len(first) // 2]
    return first


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("standard input is closed: there is no log to read")
    if sys.stdin.isatty():
        print("reading the log from the terminal: end it with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer


@contextmanager
def _spooled(stream: BinaryIO) -> Iterator[Path]:
    """What comes out of a pipe as a file: it is read more than once."""
    with NamedTemporaryFile(prefix="overland-") as file:
        shutil.copyfileobj(stream, file)
        file.flush()
        yield Path(file.name)


def _diagnosis(name: str, verdict: Verdict, counted: _Counted) -> Diagnosis:
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
        lines=counted.lines,
        kept_lines=counted.kept_lines,
        fingerprint=counted.fingerprint,
        files=counted.files,
    )
