"""Reading and writing records, and the folders of a run that hold a checkpoint or an attempt."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from configs.events import Event, event_adapter
from configs.files import read_json_lines, remembered_sha256, write_text
from configs.records import (
    Action,
    AttemptRecord,
    CommitMarker,
    Record,
    Verdict,
)
from configs.stacks import STACKS_FOLDER

COMMIT_MARKER_NAME = "COMMITTED.json"
_STEP_FOLDER = re.compile(r"step_(\d{8,})")

RecordType = TypeVar("RecordType", bound=Record)


def read_record(path: Path, record_type: type[RecordType]) -> RecordType | None:
    """Read a record; None when the file is absent or is not such a record."""
    try:
        return record_type.model_validate_json(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError, ValidationError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Write a record durably."""
    write_text(path, record.model_dump_json(indent=2) + "\n")


def step_folder_name(step: int) -> str:
    """Folder name of a checkpoint or evaluation."""
    return f"step_{step:08d}"


def step_of_folder(path: Path) -> int | None:
    """Step of a checkpoint's or evaluation's folder; None for any other name."""
    match = _STEP_FOLDER.fullmatch(path.name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class CheckpointDir:
    """One checkpoint's folder."""

    path: Path
    step: int

    def is_committed(self) -> bool:
        """Whether the commit marker is there."""
        return (self.path / COMMIT_MARKER_NAME).is_file()

    def marker(self) -> CommitMarker | None:
        """The commit marker; None when the checkpoint is not committed."""
        return read_record(self.path / COMMIT_MARKER_NAME, CommitMarker)

    def identity(self) -> str | None:
        """SHA-256 of the commit marker, another one when the step is saved again; None without."""
        with suppress(FileNotFoundError):
            return remembered_sha256(self.path / COMMIT_MARKER_NAME)
        return None


@dataclass(frozen=True)
class AttemptDir:
    """One attempt's folder."""

    path: Path
    number: int

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def record_path(self) -> Path:
        return self.path / "attempt.json"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def verdict_path(self) -> Path:
        return self.path / "verdict.json"

    @property
    def action_path(self) -> Path:
        return self.path / "action.json"

    @property
    def token_path(self) -> Path:
        """What this attempt's snapshots in node memory are marked with."""
        return self.path / "snapshot_token"

    @property
    def job_dir(self) -> Path:
        """The launcher's own files: job.json, launcher.log."""
        return self.path / "job"

    @property
    def stacks_dir(self) -> Path:
        """Stacks of the job's processes, one JSON file each, taken when it hung."""
        return self.job_dir / STACKS_FOLDER

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank_{rank:05d}.log"

    def record(self) -> AttemptRecord | None:
        return read_record(self.record_path, AttemptRecord)

    def verdict(self) -> Verdict | None:
        return read_record(self.verdict_path, Verdict)

    def action(self) -> Action | None:
        return read_record(self.action_path, Action)

    def events(self) -> list[Event]:
        """All whole events so far."""
        return self.events_from(0)[0]

    def events_from(self, offset_bytes: int) -> tuple[list[Event], int]:
        """Whole events from `offset_bytes` on, and the offset after them.

        Lines that are no event (torn by a crash) are left out.
        """
        events: list[Event] = []
        end_bytes = offset_bytes
        for value, end_bytes in read_json_lines(self.events_path, offset_bytes):  # noqa: B007
            with suppress(ValidationError):
                events.append(event_adapter.validate_python(value))
        return events, end_bytes
