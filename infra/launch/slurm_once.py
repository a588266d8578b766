"""One job for each folder: also when the submitter dies in between, or the server is away.

The order is: a mark on disk, the request with the mark as the job's comment, the claim, the record. A
submitter that finds a mark without a record asks the server for a job with that comment, and when there
is none sends its own request under the same mark. A request of the dead one that arrives after all is
then a twin: it finds the claim taken and leaves, or has the claim and is the job on record.

A mark is taken away only when its one request was refused, or its job ended in the queue: no job that
runs can have it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from configs.errors import LaunchError
from infra.launch.base import JobSpec
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_errors import (
    NoSuchJobError,
    SlurmError,
    SlurmTokenError,
    SlurmUnavailableError,
    in_words,
)
from infra.launch.slurm_jobs import gave_up, patiently
from infra.launch.slurm_record import (
    COMMENT_PREFIX,
    SlurmFiles,
    SlurmRecord,
    Submission,
    claim,
    claimed,
    read,
    write,
)
from infra.launch.slurm_status import never_starts_for
from infra.launch.slurm_types import JobRequest, SlurmJob

logger = logging.getLogger(__name__)

_RETRY_S = 2.0
_ON_ITS_WAY_S = 1.5
"""A request whose sender has died may take this long to become a job."""
_NO_REASON = ("None", "")
_FIRST_LOOK_S = 1.0
"""Within this, Slurm has looked at a new job, if it is not busy; polling looks again."""
_LOOK_PAUSE_S = 0.1
_PARTITION_LIMIT = 2015


class RefusedError(SlurmError):
    """The job was refused: there is none."""


class Once:
    """Sees that a folder gets one job. Hold the folder's lock for each call."""

    def __init__(self, client: SlurmClient, *, patience_s: float) -> None:
        self._client, self._patience_s = client, patience_s

    def submit(
        self, spec: JobSpec, files: SlurmFiles, request_of: Callable[[Submission], JobRequest]
    ) -> SlurmRecord:
        """Submit the job, or find the one that somebody has submitted before."""
        before = read(files.submission, Submission)
        if before is not None and before.key != spec.key:
            raise LaunchError(
                f"{files.job_dir} is for the job {before.key!r}; {spec.key!r} needs its own folder"
            )
        if (found := self.adopt(files)) is not None:
            return found
        submission = Submission(
            key=spec.key,
            mark=before.mark if before else uuid.uuid4().hex[:12],
            begun_at=time.time(),
            name=spec.name,
            distributed=spec.distributed,
            refused=before.refused if before else (),
        )
        request = request_of(submission)
        _write_submission(files, submission)
        job_id = self._post(files, request, submission, alone=before is None)
        return self._record(files, submission, job_id, is_ours=True)

    def adopt(self, files: SlurmFiles) -> SlurmRecord | None:
        """The job of a submitter that died before it had recorded it."""
        submission = read(files.submission, Submission)
        if submission is None:
            return None
        # Bounded, as it may have been written by a clock that is ahead of ours.
        early_s = submission.begun_at + _ON_ITS_WAY_S - time.time()
        time.sleep(min(max(0.0, early_s), _ON_ITS_WAY_S))
        if (holder := claimed(files)) is not None:
            return self._record(files, submission, holder, is_ours=False)
        job_id = patiently(lambda: self._look_up(submission), patience_s=self._patience_s)
        if job_id is None:
            return None
        return self._record(files, submission, job_id, is_ours=True)

    # --- one request ------------------------------------------------------------------------------

    def _post(
        self, files: SlurmFiles, request: JobRequest, submission: Submission, *, alone: bool
    ) -> int:
        """Number of the job; `alone`: no other request with this mark can become one."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                job_id, objection = self._client.submit(request)
            except SlurmUnavailableError as error:
                if time.monotonic() >= deadline:
                    raise gave_up(error, self._patience_s) from error
                logger.warning("job %r is not submitted yet: %s", submission.key, error)
                time.sleep(_RETRY_S)
                if error.was_sent:  # It may have become a job all the same.
                    alone = False
            except SlurmError as error:
                if alone:
                    _take_away_mark(files)
                elif (found := self._look_patiently(submission, deadline)) is not None:
                    return found
                if isinstance(error, SlurmTokenError):
                    raise
                raise RefusedError(str(error), error.number) from error
            else:
                if objection is not None or not self._client.dialect.tells_objections:
                    self._refuse_if_hopeless(files, submission, job_id, objection, alone=alone)
                return job_id
            if not alone and (found := self._look_patiently(submission, deadline)) is not None:
                return found

    def _look_patiently(self, submission: Submission, deadline: float) -> int | None:
        left_s = max(1.0, deadline - time.monotonic())
        return patiently(lambda: self._look_up(submission), patience_s=left_s)

    def _look_up(self, submission: Submission) -> int | None:
        """Number of the job with the submission's comment; one that was refused does not count."""
        mine = [job for job in self._client.jobs() if job.comment == submission.comment]
        for job in mine:
            if job.job_id in submission.refused and not job.final:
                self._client.cancel(job.job_id)
        found = [job for job in mine if not _was_refused(job, submission)]
        first = min(found, key=lambda job: (job.final, job.job_id), default=None)
        return first.job_id if first is not None else None

    def _refuse_if_hopeless(
        self,
        files: SlurmFiles,
        submission: Submission,
        job_id: int,
        objection: SlurmError | None,
        *,
        alone: bool,
    ) -> None:
        """A job that can never start would wait for ever."""
        try:
            reason = self._why_never(job_id)
        except SlurmError:
            return  # It is submitted, and must be recorded.
        if reason is None:
            return
        # First the word that it does not count, then its end: we may die in between.
        refused = (*submission.refused, job_id)
        _write_submission(files, submission.model_copy(update={"refused": refused}))
        patiently(lambda: self._client.cancel(job_id), patience_s=self._patience_s)
        if alone:
            _take_away_mark(files)
        words = str(objection) if objection else "the job can never start"
        number = objection.number if objection else None
        if number is None and reason.startswith("Partition"):
            number = _PARTITION_LIMIT
        raise RefusedError(f"{words} ({reason})", number)

    def _why_never(self, job_id: int) -> str | None:
        """Why the new job can never start, as far as Slurm has looked at it by now."""
        deadline = time.monotonic() + _FIRST_LOOK_S
        while True:
            job = self._client.job(job_id)
            if job.state != "PENDING" or job.reason not in _NO_REASON:
                return job.reason if never_starts_for(job, self._client.nodes) else None
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_PAUSE_S)

    # --- the record -------------------------------------------------------------------------------

    def _record(
        self, files: SlurmFiles, submission: Submission, job_id: int, *, is_ours: bool
    ) -> SlurmRecord:
        """Put the job on record, or the one that was faster; `is_ours`: it is known to have the mark."""
        try:
            holder = claim(files, job_id)
            if holder != job_id:
                with suppress(SlurmError):  # Polling ends it too, and it would do nothing.
                    self._client.cancel(job_id)
            known = is_ours and holder == job_id
            record = SlurmRecord(
                key=submission.key,
                job_id=holder,
                comment=submission.comment if known else self._comment_of(holder, submission),
                name=submission.name,
                url=self._client.url,
                distributed=submission.distributed,
                submitted_at=min(submission.begun_at, time.time()),
            )
            write(files.record, record)
        except OSError as error:
            raise LaunchError(
                f"job {submission.key!r} cannot be recorded: {in_words(error)}"
            ) from error
        return record

    def _comment_of(self, holder: int, submission: Submission) -> str:
        """The comment of the job that has the claim. When its number is another job's by now, it has
        ended, and ours is as good as any."""
        try:
            job = patiently(lambda: self._client.job(holder), patience_s=self._patience_s)
        except NoSuchJobError:
            return submission.comment
        prefix, suffix = f"{COMMENT_PREFIX} ", f" {submission.key}"
        is_for_us = job.comment.startswith(prefix) and job.comment.endswith(suffix)
        return job.comment if is_for_us else submission.comment


def _write_submission(files: SlurmFiles, submission: Submission) -> None:
    try:
        write(files.submission, submission)
    except OSError as error:
        raise LaunchError(
            f"job {submission.key!r} cannot be recorded: {in_words(error)}"
        ) from error


def _take_away_mark(files: SlurmFiles) -> None:
    with suppress(OSError):  # Kept, it does no harm.
        files.submission.unlink(missing_ok=True)


def _was_refused(job: SlurmJob, submission: Submission) -> bool:
    if job.job_id in submission.refused:
        return True
    return job.state == "FAILED" and job.reason == "BadConstraints"
