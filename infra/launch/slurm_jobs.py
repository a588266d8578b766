"""All jobs of a server in one query, shared by everything in this process that watches one.

The server may be away: then what was last seen is still the answer, until patience is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from configs.errors import LaunchError
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_errors import (
    NO_SUCH_JOB,
    NoSuchJobError,
    SlurmError,
    SlurmUnavailableError,
    seconds,
)
from infra.launch.slurm_types import FINAL_STATES, SlurmJob

T = TypeVar("T")
logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_SLOW_S = 1.0
_REST_AFTER_SLOW = 3.0
"""Pauses are at least so many times as long as a slow server took to answer."""


def patiently(
    ask: Callable[[], T],
    *,
    patience_s: float,
    log: Callable[..., None] = logger.warning,
) -> T:
    """What `ask` returns, once the server answers; LaunchError when it stays away for `patience_s`.
    Each wait is logged."""
    deadline, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return ask()
        except SlurmUnavailableError as error:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise gave_up(error, patience_s) from error
            pause_s = min(pause_s, left_s)
            log("%s; asked again in %.2g s, for %.0f s at most", error, pause_s, left_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def gave_up(error: SlurmUnavailableError, patience_s: float) -> LaunchError:
    """What is said when the server has been away for too long."""
    return LaunchError(
        f"Slurm has not answered for {seconds(patience_s)} ({error}); jobs go on without us: start the run "
        "again when it is back, which finds them"
    )


@dataclass(frozen=True)
class Snapshot:
    """All jobs as of one moment."""

    jobs: dict[int, SlurmJob]
    asked_at: float
    """Unix seconds: jobs that were submitted earlier are in it, unless the server has forgotten them."""
    by_comment: dict[str, list[SlurmJob]] = field(default_factory=dict)


class JobTable:
    """The server's jobs, asked for at most once per interval however many ask us."""

    def __init__(self, client: SlurmClient, *, interval_s: float, patience_s: float) -> None:
        self._client, self.interval_s, self._patience_s = client, interval_s, patience_s
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._asked_at = -float("inf")
        self._answered_at = 0.0
        self._took_s = 0.0
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

    def twins(self, job_id: int, *, comment: str) -> list[SlurmJob]:
        """Other jobs with this job's comment that have not ended: of requests that were sent twice."""
        mine = self.snapshot().by_comment.get(comment, [])
        return [job for job in mine if job.job_id != job_id and job.state not in FINAL_STATES]

    def snapshot(self) -> Snapshot:
        """All jobs, as of an interval ago at most, or as of when the server last answered."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = patiently(self._ask, patience_s=self._patience_s)
            elif time.monotonic() - self._asked_at >= self._pause_s:
                try:
                    self._snapshot = self._ask()
                except SlurmUnavailableError as error:
                    if time.monotonic() - self._answered_at > self._patience_s:
                        raise gave_up(error, self._patience_s) from error
            return self._snapshot

    @property
    def _pause_s(self) -> float:
        if self._took_s < _SLOW_S:
            return self.interval_s
        return max(self.interval_s, (1 + _REST_AFTER_SLOW) * self._took_s)

    def _ask(self) -> Snapshot:
        asked_at, self._asked_at = time.time(), time.monotonic()
        self.queries += 1
        try:
            found = self._client.jobs()
        except SlurmError as error:
            if not self.is_away:
                logger.warning("what was seen last of all jobs counts meanwhile: %s", error)
            self.is_away = True
            raise
        self._answered_at, self.is_away = time.monotonic(), False
        self._took_s = self._answered_at - self._asked_at
        by_comment: dict[str, list[SlurmJob]] = {}
        for job in found:
            by_comment.setdefault(job.comment, []).append(job)
        return Snapshot({job.job_id: job for job in found}, asked_at, by_comment)
