"""Jobs on a Slurm cluster, through its REST interface.

What is known of a job is in its job_dir, on storage that the login node and all nodes share
(:mod:`infra.launch.slurm_record`), and at the server. The launcher keeps nothing in memory but the last
answer to "all jobs". What runs on the nodes is :mod:`infra.launch.slurm_node`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from configs.errors import LaunchError
from configs.files import file_lock, write_json
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus
from infra.launch.record import read_cancel_grace_s
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_errors import NoSuchJobError, SlurmError, in_words
from infra.launch.slurm_jobs import JobTable, patiently
from infra.launch.slurm_record import (
    Ended,
    NodeRecord,
    SlurmFiles,
    SlurmRecord,
    have_written,
    node_records,
    read,
    write,
)
from infra.launch.slurm_status import (
    NOTHING_SEEN,
    ended_as,
    forgotten,
    never_starts,
    never_starts_for,
    not_launched,
    requeued,
)
from infra.launch.slurm_submit import Submitter
from infra.launch.slurm_types import SUSPENDED, SlurmJob, split_names
from infra.launch.stacks import request_stacks

logger = logging.getLogger(__name__)

_PROLOG_WORDS = "prolog error"
_BY_ITSELF = ("COMPLETED", "FAILED")
_LATE_S = 5.0
"""So late may a network file system show a job's output."""
_CANCEL_MARGIN_S = 10.0
"""Nodes look for a request to end once a second, and Slurm cleans up after them."""
_KILL_TIMEOUT_S = 120.0
"""From Slurm's own cancelling to the job's end: the site's KillWait, and cleaning up."""


class SlurmLauncher:
    """The launcher for a cluster; several may share a client and a table."""

    def __init__(
        self, client: SlurmClient, table: JobTable, submitter: Submitter, *, patience_s: float
    ) -> None:
        self._client, self._table, self._submitter = client, table, submitter
        self._patience_s = patience_s

    def submit(self, spec: JobSpec) -> JobHandle:
        """Submit the job, or find the one that was already submitted with this key in this job_dir."""
        files = SlurmFiles(spec.job_dir.absolute())
        self._submitter.check(spec)
        record = read(files.record, SlurmRecord)
        if record is None:
            try:
                with _locked(files):
                    record = read(files.record, SlurmRecord) or self._submitter.submit(spec, files)
            except LaunchError:
                _leave_nothing(files)
                raise
        if record.key != spec.key:
            raise LaunchError(
                f"{files.job_dir} holds the job {record.key!r}; {spec.key!r} needs its own folder"
            )
        return record.handle(files.job_dir)

    def find(self, job_dir: Path) -> JobHandle | None:
        """The job that was submitted with this folder, running or ended; None if there was none."""
        files = SlurmFiles(job_dir.absolute())
        record = read(files.record, SlurmRecord)
        if record is None and files.submission.exists():
            # Somebody died while submitting: the server knows whether there is a job.
            with _locked(files):
                record = read(files.record, SlurmRecord) or self._submitter.adopt(files)
        return record.handle(files.job_dir) if record is not None else None

    def poll(self, handle: JobHandle) -> JobStatus:
        """State as of a moment ago. While the server is away it is the last one that was seen."""
        files, record = SlurmFiles(handle.job_dir), _read(handle)
        if record.ended is not None:
            return record.ended.status()
        cancelled = read_cancel_grace_s(files) is not None
        self._end_twins(record)
        try:
            job = self._table.find(
                record.job_id, comment=record.comment, submitted_at=record.submitted_at
            )
        except NoSuchJobError:
            return self._settle(files, record, self._long_ended(files, record, cancelled))
        if job is None:
            return JobStatus(JobState.PENDING, reason="is not yet seen by Slurm")
        if job.final:
            return self._settle(files, record, self._just_ended(files, job, cancelled))
        if never_starts_for(
            job, lambda: patiently(self._client.nodes, patience_s=self._patience_s)
        ):
            patiently(lambda: self._client.cancel(job.job_id), patience_s=self._patience_s)
            return self._settle(files, record, never_starts(job))
        if job.restarts or (job.state == "PENDING" and "REQUEUED" in job.flags):
            patiently(lambda: self._client.cancel(job.job_id), patience_s=self._patience_s)
            nodes = node_records(files, job.job_id)
            ended = requeued(job, nodes, nodes_lost=self._any_lost(nodes))
            return self._settle(files, record, ended)
        return _live_status(job, stale=self._table.is_away)

    def cancel(self, handle: JobHandle, *, grace_s: float = 10.0) -> None:
        """End the job: SIGTERM to all its processes, SIGKILL after `grace_s`. Returns when it has
        ended; does nothing when it already had."""
        status = self.poll(handle)
        if status.state.final:
            return
        files, job_id = SlurmFiles(handle.job_dir), int(handle.job_id)
        with suppress(OSError):  # The disk is full: then Slurm's own way must do.
            write_json(files.cancel, {"grace_s": grace_s, "requested_at": time.time()})
        # The nodes see to it, with as much time as they need to save; Slurm would give KillWait.
        asked = status.state is JobState.RUNNING and files.cancel.exists()
        if asked and self._wait_for_end(handle, grace_s + _CANCEL_MARGIN_S):
            return
        patiently(lambda: self._client.cancel(job_id), patience_s=self._patience_s)
        if not self._wait_for_end(handle, _KILL_TIMEOUT_S):
            raise LaunchError(
                f"job {handle.key!r} ({job_id}) cannot be ended: see `scontrol show job`"
            )

    def stacks(self, handle: JobHandle, *, timeout_s: float) -> list[Path]:
        """What the ranks are doing, in a file each, as far as that is known after `timeout_s`."""
        record, status = _read(handle), self.poll(handle)
        if status.state is not JobState.RUNNING or not record.distributed:
            return []
        try:
            return request_stacks(handle.job_dir, status.nodes, timeout_s=timeout_s)
        except OSError as error:
            raise LaunchError(
                f"the stacks of job {handle.key!r} cannot be had: {in_words(error)}"
            ) from error

    def logs(self, handle: JobHandle) -> list[Path]:
        """Files with the launcher's and the program's output."""
        log = SlurmFiles(handle.job_dir).log
        return [log] if log.is_file() else []

    def nodes(self, *, also_down: bool = False) -> list[str]:
        """Names of the nodes that can run jobs, in the partitions that jobs go to."""
        nodes = patiently(self._client.nodes, patience_s=self._patience_s)
        partitions = patiently(self._partitions, patience_s=self._patience_s)
        mine = [n for n in nodes if not partitions or partitions & set(n.partitions)]
        return [node.name for node in mine if node.usable or also_down]

    def lost_nodes(self) -> list[str]:
        """Names of the nodes that have failed, of all partitions."""
        nodes = patiently(self._client.nodes, patience_s=self._patience_s)
        return [node.name for node in nodes if node.is_lost]

    def _partitions(self) -> set[str]:
        """Those of the config, or the site's default; empty where the server does not name it."""
        return set(split_names(self._submitter.partition)) or set(self._client.default_partitions())

    def cordon(self, node: str, reason: str) -> None:
        """Take a node out of service for later jobs: it is drained, with the reason."""
        nodes = patiently(self._client.nodes, patience_s=self._patience_s)
        known = {known.name: known for known in nodes}
        if node not in known:
            raise LaunchError(f"node {node!r} cannot be drained: Slurm has no such node")
        if "DRAIN" in known[node].flags or known[node].state == "DRAIN":
            return  # Somebody has, with a reason that should stay.
        patiently(lambda: self._client.drain(node, reason), patience_s=self._patience_s)

    def _end_twins(self, record: SlurmRecord) -> None:
        """Take out of the queue what has the record's mark without its claim: it would only leave again."""
        for twin in self._table.twins(record.job_id, comment=record.comment):
            try:
                self._client.cancel(twin.job_id)
            except SlurmError as error:  # The next poll tries again.
                logger.warning(
                    "job %d, a twin of %d, is left: %s", twin.job_id, record.job_id, error
                )

    def _just_ended(self, files: SlurmFiles, job: SlurmJob, cancelled: bool) -> Ended:
        nodes = node_records(files, job.job_id)
        unseen = job.state in _BY_ITSELF and not nodes and not _is_seen(files)
        lost = bool(job.restarts) and self._any_lost(nodes)
        ended = ended_as(job, nodes, cancelled=cancelled, unseen=unseen, nodes_lost=lost)
        if unseen and ended.reason.startswith(NOTHING_SEEN) and have_written(files):
            why = "nothing that it wrote is seen, as of earlier jobs: its nodes may have lost the storage"
            return not_launched(job, why)
        if ended.state is JobState.CANCELLED and not (nodes or cancelled):
            # Nobody's scancel maybe: that is what becomes of a job whose node fails in its prolog.
            known = patiently(self._client.nodes, patience_s=self._patience_s)
            for node in known:
                if node.name in job.nodes and _PROLOG_WORDS in node.reason.lower():
                    return not_launched(job, f"{node.name} was drained with {node.reason!r}")
        return ended

    def _any_lost(self, nodes: Sequence[NodeRecord]) -> bool:
        """Whether one of the nodes that have written a record has failed."""
        if not nodes:
            return False
        return bool({record.node for record in nodes} & set(self.lost_nodes()))

    def _long_ended(self, files: SlurmFiles, record: SlurmRecord, cancelled: bool) -> Ended:
        """Of a job that slurmctld has forgotten: slurmdbd remembers it, or its nodes have left word."""
        nodes = node_records(files, record.job_id)
        try:
            remembered = patiently(
                lambda: self._client.accounted_jobs(record.job_id), patience_s=self._patience_s
            )
        except SlurmError:  # Without slurmdbd; one that is away is waited for.
            remembered = []
        for old in remembered:
            same = old.is_the_one(
                comment=record.comment, name=record.name, submitted_at=record.submitted_at
            )
            if same and old.job.final:
                return ended_as(old.job, nodes, cancelled=cancelled)
        return forgotten(nodes, cancelled=cancelled)

    def _wait_for_end(self, handle: JobHandle, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self.poll(handle).state.final:
            if time.monotonic() >= deadline:
                return False
            time.sleep(self._table.interval_s / 4)
        return True

    def _settle(self, files: SlurmFiles, record: SlurmRecord, ended: Ended) -> JobStatus:
        """Put the end on record: Slurm forgets it within minutes."""
        try:
            with file_lock(files.lock):
                current = read(files.record, SlurmRecord) or record
                if current.ended is None:
                    current = current.model_copy(update={"ended": ended})
                    write(files.record, current)
        except OSError as error:
            raise LaunchError(
                f"the end of job {record.key!r} cannot be recorded: {in_words(error)}"
            ) from error
        return (current.ended or ended).status()


def _live_status(job: SlurmJob, *, stale: bool) -> JobStatus:
    if job.state == "PENDING":
        where = f"the queue of partition {job.partition}" if job.partition else "Slurm's queue"
        why = f": {job.reason}" if job.reason not in ("None", "") else ""
        return JobStatus(JobState.PENDING, reason=f"waits in {where}{why}", stale=stale)
    return JobStatus(
        JobState.RUNNING,
        started_at=job.started_at,
        nodes=job.nodes,
        reason="suspended by Slurm" if job.state == SUSPENDED else "",
        suspended=job.state == SUSPENDED,
        stale=stale,
    )


def _is_seen(files: SlurmFiles) -> bool:
    """Whether the job's output is there, which Slurm begins with. Storage may show it late."""
    deadline = time.monotonic() + _LATE_S
    while not files.log.is_file():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LATE_S / 20)
    return True


@contextmanager
def _locked(files: SlurmFiles) -> Iterator[None]:
    with ExitStack() as held:
        try:
            files.job_dir.mkdir(parents=True, exist_ok=True)
            held.enter_context(file_lock(files.lock))
        except OSError as error:
            raise LaunchError(f"{files.job_dir} cannot be written: {in_words(error)}") from error
        yield


def _leave_nothing(files: SlurmFiles) -> None:
    """Take the folder of a job away that was not submitted; not while a request may become one."""
    if not (files.submission.exists() or files.record.exists()):
        with suppress(OSError):  # Somebody else's files are in it.
            files.lock.unlink(missing_ok=True)
            files.job_dir.rmdir()


def _read(handle: JobHandle) -> SlurmRecord:
    record = read(SlurmFiles(handle.job_dir).record, SlurmRecord)
    if record is None:
        raise LaunchError(f"there is no job in {handle.job_dir}: its job.json is missing")
    if str(record.job_id) != handle.job_id:
        raise LaunchError(
            f"{handle.job_dir} holds job {record.job_id}, submitted later than {handle.job_id}"
        )
    return record
