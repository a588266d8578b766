"""A Slurm job's files in its job_dir, beside those of :mod:`infra.launch.record`.

    job.lock         held while it is submitted
    submission.json  written before the job is submitted: the mark by which it is found on the server
    job.claim        the number of the one Slurm job that may run here
    job.json         the record; with the end, once that is known
    cancel.json      a request to end the job, which its nodes look for
    rendezvous.json  where the ranks of several nodes meet
    nodes/NAME.json  written by each node: what it runs, and how that ended
    launcher.log     the job's output

Whoever submitted may have died at any moment, and a request may arrive at the server after its sender
is gone. So it is not the submission that must be unique but the claim: a job that finds another one's
number in job.claim leaves without doing anything.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import LaunchError
from configs.files import sync_directory, write_text
from infra.launch.base import JobHandle, JobState, JobStatus
from infra.launch.record import JobFiles
from infra.launch.slurm_errors import in_words

COMMENT_PREFIX = "overland"
SUBMISSION_NAME = "submission.json"


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


R = TypeVar("R", bound=_Record)


class Submission(_Record):
    """submission.json."""

    key: str
    mark: str
    """Random: a folder that was deleted and made anew has another one."""
    begun_at: float
    name: str = ""
    distributed: bool = False
    refused: tuple[int, ...] = ()
    """Jobs with this mark that can never start: we have ended them."""

    @property
    def comment(self) -> str:
        """The Slurm job's."""
        return f"{COMMENT_PREFIX} {self.mark} {self.key}"


class Ended(_Record):
    """How a job ended."""

    state: JobState
    exit_code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    nodes: tuple[str, ...] = ()
    reason: str = ""

    def status(self) -> JobStatus:
        """For callers of the launcher."""
        return JobStatus(**dict(self))


class SlurmRecord(_Record):
    """job.json."""

    launcher: Literal["slurm"] = "slurm"
    key: str
    job_id: int
    comment: str
    name: str
    url: str
    distributed: bool
    submitted_at: float
    ended: Ended | None = None

    def handle(self, job_dir: Path) -> JobHandle:
        """How the launcher's callers hold this job."""
        return JobHandle(self.key, str(self.job_id), job_dir, self.submitted_at)


class NodeRecord(_Record):
    """nodes/NAME.json."""

    job_id: int
    node: str
    rank: int
    """Of the node in its job."""
    started_at: float
    state: JobState = JobState.RUNNING
    exit_code: int | None = None
    signal: int | None = None
    ended_at: float | None = None
    reason: str = ""


class Rendezvous(_Record):
    """rendezvous.json."""

    job_id: int
    address: str
    port: int = Field(gt=0)


@dataclass(frozen=True)
class SlurmFiles(JobFiles):
    """Names in one job_dir."""

    @property
    def submission(self) -> Path:
        return self.job_dir / SUBMISSION_NAME

    @property
    def claim(self) -> Path:
        return self.job_dir / "job.claim"

    @property
    def rendezvous(self) -> Path:
        return self.job_dir / "rendezvous.json"

    @property
    def nodes(self) -> Path:
        return self.job_dir / "nodes"

    def node(self, name: str) -> Path:
        return self.nodes / f"{name}.json"


def write(path: Path, record: _Record) -> None:
    """Write a record durably."""
    write_text(path, record.model_dump_json(indent=2) + "\n")


def read(path: Path, kind: type[R]) -> R | None:
    """Read a record; None when there is none."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {in_words(error)}") from error
    except ValidationError as error:
        raise LaunchError(
            f"{path} is not a record of the Slurm launcher: go on with the launcher that made it"
        ) from error


def node_records(files: SlurmFiles, job_id: int) -> list[NodeRecord]:
    """What the job's nodes have said, in their order."""
    found = [read(path, NodeRecord) for path in files.nodes.glob("*.json")]
    mine = [record for record in found if record is not None and record.job_id == job_id]
    return sorted(mine, key=lambda record: record.rank)


def have_written(files: SlurmFiles) -> bool:
    """Whether nodes have written for other jobs of the same work: attempts' folders, or those of stages,
    lie beside each other."""
    attempts = files.job_dir.parent.parent.glob(f"*/{files.job_dir.name}/{files.nodes.name}/*.json")
    return any(attempts) or any(files.job_dir.parent.glob(f"*/{files.nodes.name}/*.json"))


def claim(files: SlurmFiles, job_id: int) -> int:
    """Take the folder for the job unless another one has it; the number of the one that has."""
    temporary = files.job_dir / f".job.claim.{uuid.uuid4().hex[:8]}.tmp"
    try:
        temporary.write_text(f"{job_id}\n")
        with suppress(FileExistsError):
            os.link(temporary, files.claim)
            sync_directory(files.job_dir)
    finally:
        temporary.unlink(missing_ok=True)
    holder = claimed(files)
    if holder is None:
        raise LaunchError(f"{files.claim} was removed: nobody but its job may do so")
    return holder


def claimed(files: SlurmFiles) -> int | None:
    """Number of the job that has the folder, if any has."""
    try:
        return int(files.claim.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"{files.claim} cannot be read: {in_words(error)}") from error
    except ValueError as error:
        raise LaunchError(f"{files.claim} holds no job number: it was edited by hand") from error
