"""The request that a spec becomes by the site's settings, and why one was refused."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from configs.errors import JobRefusedError, LaunchError
from configs.schema import LauncherConfig
from infra.launch.base import JobSpec
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_contact import first_contact
from infra.launch.slurm_environment import job_environment
from infra.launch.slurm_errors import SlurmError, is_asked_wrongly, refusal
from infra.launch.slurm_jobs import patiently
from infra.launch.slurm_once import Once, RefusedError
from infra.launch.slurm_record import SlurmFiles, SlurmRecord, Submission
from infra.launch.slurm_script import render
from infra.launch.slurm_types import JobRequest


class Submitter:
    """Turns a spec into a request by the site's settings, and sees that it becomes one job."""

    def __init__(self, client: SlurmClient, config: LauncherConfig) -> None:
        self._client, self._config, self._site = client, config, config.slurm
        self._once = Once(client, patience_s=config.slurm.patience_s)

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
        if not (files.submission.exists() or _has_forerunners(files)):
            first_contact(self._client, patience_s=self._site.patience_s)
        requests: list[JobRequest] = []

        def request_of(submission: Submission) -> JobRequest:
            requests.append(self.request(spec, submission))
            return requests[-1]

        try:
            return self._once.submit(spec, files, request_of)
        except RefusedError as error:
            why = self._why(requests[-1], error)
            kind = JobRefusedError if is_asked_wrongly(error.number) else LaunchError
            raise kind(f"job {spec.key!r} was refused: {why}") from error

    def adopt(self, files: SlurmFiles) -> SlurmRecord | None:
        """The job of a submitter that died before it had recorded it. Hold the folder's lock."""
        return self._once.adopt(files)

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
            with suppress(SlurmError):
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


def _has_forerunners(files: SlurmFiles) -> bool:
    """Whether an earlier job of the same work is on record: attempts lie beside each other."""
    return any(files.job_dir.parent.parent.glob(f"*/{files.job_dir.name}/{files.record.name}"))


def _time_limit_minutes(spec: JobSpec, site_minutes: int | None) -> int | None:
    """The site's. A short job for each node says that it is short: it is fitted in between others."""
    if not spec.each_node or spec.time_limit_s is None:
        return site_minutes
    own = math.ceil(spec.time_limit_s / 60) + 1
    return own if site_minutes is None else min(own, site_minutes)
