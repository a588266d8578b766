"""Submitting to Slurm, once: also when the submitter dies in between, or the server is away.

The order is: a mark on disk, the request with the mark as the job's comment, the claim, the record. A
submitter that finds a mark without a record asks the server for a job with that comment. One that is
still on its way then, is too late for the claim and leaves by itself.
"""

from __future__ import annotations

import math
import time
import uuid
from pathlib import Path

from configs.errors import LaunchError
from configs.schema import LauncherConfig
from infra.launch.base import JobSpec
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_environment import job_environment
from infra.launch.slurm_errors import (
    SlurmError,
    SlurmTokenError,
    SlurmUnavailableError,
    refusal,
)
from infra.launch.slurm_jobs import gave_up, patiently
from infra.launch.slurm_record import (
    SlurmFiles,
    SlurmRecord,
    Submission,
    claim,
    claimed,
    read,
    write,
)
from infra.launch.slurm_script import render
from infra.launch.slurm_types import JobRequest, SlurmJob

_RETRY_S = 2.0
_ON_ITS_WAY_S = 1.5
"""A request whose sender has died may take this long to become a job."""
_WAITS = {"PartitionDown", "PartitionInactive", "PartitionDownOrInactive"}
"""Why a job that does not start now may well start later."""
_NO_REASON = ("None", "")
_FIRST_LOOK_S = 1.0
"""Within this, Slurm has looked at a new job."""
_LOOK_PAUSE_S = 0.1
_PARTITION_LIMIT = 2015


class Submitter:
    """Turns a spec into a request by the site's settings, and sees that it becomes one job."""

    def __init__(self, client: SlurmClient, config: LauncherConfig) -> None:
        self._client, self._config, self._site = client, config, config.slurm

    @property
    def partition(self) -> str | None:
        """Where training goes; None: the site's default."""
        return self._site.partition

    def check(self, spec: JobSpec) -> None:
        """Refuse what cannot be put into a job."""
        if not spec.argv or not all(spec.argv[:1]):
            raise LaunchError(f"job {spec.key!r} names no program: argv must not be empty")
        if spec.nodes < 1 or spec.processes_per_node < 1:
            raise LaunchError(
                f"job {spec.key!r} wants {spec.nodes} nodes with {spec.processes_per_node} processes: "
                "at least 1 of each is right"
            )
        if spec.nodes > 1 and not (spec.distributed or spec.each_node):
            raise LaunchError(f"job {spec.key!r} wants {spec.nodes} nodes but is not distributed")
        texts = [spec.key, spec.name, *spec.argv, *spec.environment, *spec.environment.values()]
        if any("\0" in text for text in texts):
            raise LaunchError(f"job {spec.key!r} has a NUL character in an argument or variable")
        if any(c in str(spec.job_dir) for c in "\\\n"):
            raise LaunchError(
                f"job_dir {spec.job_dir} has a backslash or line break: Slurm cannot use it"
            )

    def submit(self, spec: JobSpec, files: SlurmFiles) -> SlurmRecord:
        """Submit the job, or find the one that somebody has submitted before. Hold the folder's lock."""
        if (found := self.adopt(files)) is not None:
            return found
        submission = Submission(
            key=spec.key,
            mark=uuid.uuid4().hex[:12],
            begun_at=time.time(),
            name=spec.name,
            distributed=spec.distributed,
        )
        request = self.request(spec, submission)
        try:
            write(files.submission, submission)
        except OSError as error:
            raise LaunchError(f"job {spec.key!r} cannot be recorded: {error}") from error
        try:
            job_id = self._post(spec, request, submission)
        except SlurmUnavailableError as error:
            raise gave_up(error, self._site.patience_s) from error
        except SlurmError as error:
            files.submission.unlink(missing_ok=True)
            if isinstance(error, SlurmTokenError):
                raise
            raise LaunchError(
                f"job {spec.key!r} was refused: {self._why(request, error)}"
            ) from error
        return self._record(files, submission, job_id)

    def adopt(self, files: SlurmFiles) -> SlurmRecord | None:
        """The job of a submitter that died before it had recorded it. Hold the folder's lock."""
        submission = read(files.submission, Submission)
        if submission is None:
            return None
        time.sleep(max(0.0, submission.begun_at + _ON_ITS_WAY_S - time.time()))
        patience_s = self._site.patience_s
        job_id = claimed(files) or patiently(
            lambda: self._look_up(submission), patience_s=patience_s
        )
        return self._record(files, submission, job_id) if job_id is not None else None

    # --- one submission ---------------------------------------------------------------------------

    def _post(self, spec: JobSpec, request: JobRequest, submission: Submission) -> int:
        deadline = time.monotonic() + self._site.patience_s
        while True:
            try:
                job_id, objection = self._client.submit(request)
            except SlurmUnavailableError as error:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_S)
                if not error.was_sent:
                    continue
                # It may have become a job all the same.
                left_s = max(1.0, deadline - time.monotonic())
                found = patiently(lambda: self._look_up(submission), patience_s=left_s)
                if found is not None:
                    return found
                continue
            if objection is not None or not self._client.dialect.tells_objections:
                self._refuse_if_hopeless(job_id, objection)
            return job_id

    def _refuse_if_hopeless(self, job_id: int, objection: SlurmError | None) -> None:
        """A job that can never start would wait for ever."""
        deadline = time.monotonic() + _FIRST_LOOK_S
        while True:
            try:
                job = self._client.job(job_id)
            except SlurmUnavailableError:
                return  # It is submitted, and must be recorded.
            if job.state != "PENDING" or job.reason not in _NO_REASON:
                break
            if time.monotonic() > deadline:
                return
            time.sleep(_LOOK_PAUSE_S)
        hopeless = job.reason.startswith("Partition") and job.reason not in _WAITS
        if job.state == "PENDING" and hopeless:
            self._client.cancel(job_id)
            words = str(objection) if objection else "the job can never start"
            number = objection.number if objection else _PARTITION_LIMIT
            raise SlurmError(f"{words} ({job.reason})", number)

    def _look_up(self, submission: Submission) -> int | None:
        """Number of the job with the submission's comment; one that was refused does not count."""
        mine = [job for job in self._client.jobs() if job.comment == submission.comment]
        return min((job.job_id for job in mine if not _was_refused(job)), default=None)

    def _record(self, files: SlurmFiles, submission: Submission, job_id: int) -> SlurmRecord:
        """Put the job on record, or the one that was faster."""
        holder = claim(files, job_id)
        if holder != job_id:
            patiently(lambda: self._client.cancel(job_id), patience_s=self._site.patience_s)
        record = SlurmRecord(
            key=submission.key,
            job_id=holder,
            comment=submission.comment,
            name=submission.name,
            url=self._client.url,
            distributed=submission.distributed,
            submitted_at=time.time(),
        )
        try:
            write(files.record, record)
        except OSError as error:
            raise LaunchError(f"job {submission.key!r} cannot be recorded: {error}") from error
        return record

    # --- the request ------------------------------------------------------------------------------

    def request(self, spec: JobSpec, submission: Submission) -> JobRequest:
        """What is asked of Slurm for `spec`."""
        site = self._site
        cpus = site.cpus_per_node or spec.processes_per_node * (self._config.cpu_threads or 1)
        low = spec.low_priority
        gib = site.memory_per_node_gib
        many = spec.nodes > 1 or spec.each_node
        interface = site.network_interface if many else None
        return JobRequest(
            script=render(
                spec,
                cpus_per_node=cpus,
                options=[f"--interface={interface}"] if interface else [],
            ),
            name=spec.name,
            comment=submission.comment,
            folder=str(Path.cwd()),
            output=str(SlurmFiles(spec.job_dir.absolute()).log).replace("%", "%%"),
            environment=job_environment(spec, site.withhold),
            nodes=spec.nodes,
            cpus_per_node=cpus,
            # Evaluation, of low priority, says itself how many it needs, or none.
            gpus_per_node=spec.gpus_per_node
            or (site.gpus_per_node if spec.distributed or (spec.each_node and not low) else 0),
            gpu_type=site.gpu_type,
            memory_per_node_mib=None if gib is None else math.ceil(gib * 1024),
            # A spec's own limit, to the second, is its nodes' business.
            time_limit_minutes=_time_limit_minutes(spec, site.time_limit_minutes),
            warning_s=site.warning_s if spec.distributed else None,
            partition=(spec.cpu_only and site.cpu_partition)
            or (low and site.low_priority_partition)
            or site.partition,
            account=site.account,
            qos=(low and site.low_priority_qos) or site.qos,
            nice=site.low_priority_nice if low else None,
            constraints=site.constraints,
            dependency=spec.dependency,
            exclude_nodes=self._known(spec.exclude_nodes),
            need_nodes=spec.need_nodes,
            more_nodes=spec.more_nodes,
            survives_nodes=spec.each_node,
        )

    def _known(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Those that (still) exist: others need not be excluded, and Slurm would refuse the job."""
        if not nodes:
            return ()
        found = patiently(self._client.nodes, patience_s=self._site.patience_s)
        known = {node.name for node in found}
        return tuple(node for node in nodes if node in known)

    def _why(self, request: JobRequest, error: SlurmError) -> str:
        resources = [f"{request.cpus_per_node} CPU(s)"]
        if request.gres:
            resources.append(request.gres)
        if request.memory_per_node_mib is not None:
            resources.append(f"{request.memory_per_node_mib} MiB")
        partitions = "?"
        if error.number == 2000:
            partitions = ", ".join(self._client.partitions())
        details: dict[str, object] = {
            "partition": request.partition or "(default)",
            "partitions": partitions,
            "nodes": request.nodes,
            "resources": ", ".join(resources),
            "account": request.account,
            "user": self._client.user,
            "qos": request.qos,
            "constraints": request.constraints,
            "dependency": request.dependency,
            "minutes": f"{request.time_limit_minutes} minutes"
            if request.time_limit_minutes
            else "its default time",
        }
        return refusal(error.number, str(error), details)


def _was_refused(job: SlurmJob) -> bool:
    return job.state == "FAILED" and job.reason == "BadConstraints"


def _time_limit_minutes(spec: JobSpec, site_minutes: int | None) -> int | None:
    """The site's. A short job for each node says that it is short: it is fitted in between others."""
    if not spec.each_node or spec.time_limit_s is None:
        return site_minutes
    own = math.ceil(spec.time_limit_s / 60) + 1
    return own if site_minutes is None else min(own, site_minutes)
