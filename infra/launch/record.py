"""A local job's files in its job_dir, and the record in job.json.

    job.lock      locked by the job's supervisor as long as it lives
    job.json      who runs it and how it stands; written whole, first before the program starts
    cancel.json   a request to end the job; stays as the mark that it was made
    node-is-gone  made by a person: the job's node, another than the reader's, will not come back
    launcher.log  output of the supervisor and of the program
    rendezvous, torchrun/    torchrun's, for a distributed job
    stacks.request, stacks/  what its ranks were doing when somebody asked: see stacks.py

The environment is not recorded: it may hold secrets.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import LaunchError
from configs.files import write_json
from infra.launch.base import JobHandle, JobState, JobStatus


@dataclass(frozen=True)
class JobFiles:
    """Names in one job_dir."""

    job_dir: Path

    @property
    def lock(self) -> Path:
        return self.job_dir / "job.lock"

    @property
    def record(self) -> Path:
        return self.job_dir / "job.json"

    @property
    def cancel(self) -> Path:
        return self.job_dir / "cancel.json"

    @property
    def node_is_gone(self) -> Path:
        return self.job_dir / "node-is-gone"

    @property
    def log(self) -> Path:
        return self.job_dir / "launcher.log"


@dataclass(frozen=True)
class JobRecord:
    """Content of job.json. A job without it was never started."""

    key: str
    job_id: str
    """Unique for the submission; also in the environment of the job's processes."""
    name: str
    argv: tuple[str, ...]
    node: str
    pid: int
    """The supervisor's."""
    create_time: float
    """When the process `pid` was created: another process with this number has another time."""
    started_at: float
    boot_id: str = ""
    """The kernel's, of the boot in which the job was started: no process outlives a restart."""
    state: JobState = JobState.RUNNING
    exit_code: int | None = None
    signal: int | None = None
    ended_at: float | None = None
    reason: str = ""

    def handle(self, job_dir: Path) -> JobHandle:
        """How the launcher's callers hold this job."""
        return JobHandle(self.key, self.job_id, job_dir, self.started_at)

    def status(self) -> JobStatus:
        """What the launcher's callers see of this job."""
        return JobStatus(
            state=self.state,
            exit_code=self.exit_code,
            signal=self.signal,
            started_at=self.started_at,
            ended_at=self.ended_at,
            nodes=(self.node,),
            reason=self.reason,
        )


def write_record(files: JobFiles, record: JobRecord) -> None:
    """Write job.json durably."""
    write_json(files.record, dataclasses.asdict(record))


def read_record(files: JobFiles) -> JobRecord | None:
    """Read job.json; None when there is none."""
    try:
        text = files.record.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{files.record} cannot be read: {error}") from error
    try:
        return _parse(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise LaunchError(f"{files.record} is not a job's record: {error}") from error


def _parse(value: Any) -> JobRecord:
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    known = {f.name for f in dataclasses.fields(JobRecord)}
    fields = {name: content for name, content in value.items() if name in known}
    fields["argv"] = tuple(fields["argv"])
    fields["state"] = JobState(fields["state"])
    return JobRecord(**fields)


def read_cancel_grace_s(files: JobFiles) -> float | None:
    """The grace period of a request to end the job; None when there is no request."""
    try:
        return float(json.loads(files.cancel.read_bytes())["grace_s"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LaunchError(f"{files.cancel} cannot be read: {error}") from error


class CancelRequests:
    """Looks for a request again and again. Shared storage may fail for a while: a look that fails finds
    nothing, until no look has worked for `limit_s`."""

    def __init__(self, files: JobFiles, *, limit_s: float) -> None:
        self._files, self._limit_s = files, limit_s
        self._failing_since: float | None = None

    def grace_s(self) -> float | None:
        """As read_cancel_grace_s; LaunchError once it has failed for too long."""
        try:
            found = read_cancel_grace_s(self._files)
        except LaunchError as error:
            now = time.monotonic()
            if self._failing_since is None:
                self._failing_since = now
                print(f"{error}; looked for again", file=sys.stderr, flush=True)
            if now - self._failing_since >= self._limit_s:
                raise
            return None
        self._failing_since = None
        return found
