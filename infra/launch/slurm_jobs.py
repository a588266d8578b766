"""All jobs of a server in one query, shared by everything in this process that watches one.

The server may be away: then what was last seen is still the answer, until patience is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from configs.errors import LaunchError
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_errors import NO_SUCH_JOB, NoSuchJobError, SlurmUnavailableError
from infra.launch.slurm_types import SlurmJob

T = TypeVar("T")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0


def patiently(ask: Callable[[], T], *, patience_s: float) -> T:
    """What `ask` returns, once the server answers; LaunchError when it stays away for `patience_s`."""
    deadline, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return ask()
        except SlurmUnavailableError as error:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise gave_up(error, patience_s) from error
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def gave_up(error: SlurmUnavailableError, patience_s: float) -> LaunchError:
    """What is said when the server has been away for too long."""
    return LaunchError(
        f"Slurm has not answered for {patience_s:g} s ({error}); jobs go on without us: start the run "
        "again when it is back, which finds them"
    )


@dataclass(frozen=True)
class Snapshot:
    """All jobs as of one moment."""

    jobs: dict[int, SlurmJob]
    asked_at: float
    """Unix seconds: jobs that were submitted earlier are in it, unless the server has forgotten them."""


class JobTable:
    """The server's jobs, asked for at most once per interval however many ask us."""

    def __init__(self, client: SlurmClient, *, interval_s: float, patience_s: float) -> None:
        self._client, self.interval_s, self._patience_s = client, interval_s, patience_s
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._asked_at = -float("inf")
        self._answered_at = 0.0
        self.is_away = False
        """Whether the server has left the last query unanswered."""
        self.queries = 0
        """How often the server was asked."""

    def find(self, job_id: int, *, comment: str, submitted_at: float) -> SlurmJob | None:
        """The job; None while no query is younger than its submission. NoSuchJobError when the server
        does not know it, LaunchError when it has been away for too long.

        Numbers are used again: a job with another comment is another job."""
        snapshot = self.snapshot()
        job = snapshot.jobs.get(job_id)
        if job is None or job.comment != comment:
            if snapshot.asked_at <= submitted_at:
                return None
            try:
                job = self._client.job(job_id)
            except SlurmUnavailableError:
                return None
        if job.comment != comment:
            raise NoSuchJobError(f"job {job_id} is another one now", NO_SUCH_JOB)
        return job

    def snapshot(self) -> Snapshot:
        """All jobs, as of an interval ago at most, or as of when the server last answered."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = patiently(self._ask, patience_s=self._patience_s)
            elif time.monotonic() - self._asked_at >= self.interval_s:
                try:
                    self._snapshot = self._ask()
                except SlurmUnavailableError as error:
                    if time.monotonic() - self._answered_at > self._patience_s:
                        raise gave_up(error, self._patience_s) from error
            return self._snapshot

    def _ask(self) -> Snapshot:
        asked_at, self._asked_at = time.time(), time.monotonic()
        self.queries += 1
        self.is_away = True
        jobs = {job.job_id: job for job in self._client.jobs()}
        self._answered_at, self.is_away = time.monotonic(), False
        return Snapshot(jobs, asked_at)
