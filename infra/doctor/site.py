"""Which checks there are for a site, by its config."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from configs.memory import snapshot_bytes
from configs.rundir import RunDir
from configs.schema import RunConfig
from configs.shapes import count_parameters, padded_vocab_size
from configs.slurm_schema import SlurmConfig
from infra.doctor import machine, services, slurm, storage
from infra.doctor.findings import Check, Finding, Look, failed, ok, skipped, warning
from infra.doctor.nodes import NodeProbe, check_nodes
from infra.track import resolve_tracking_uri
from infra.track.errors import TrackingUnreachableError
from infra.track.reachable import check_writable

_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108
_BYTES_PER_PARAMETER = {"bf16": 14}
"""Of a checkpoint; 12 in the other precisions."""


@dataclass(frozen=True)
class Site:
    """What is to be looked at."""

    config: RunConfig
    has_config: bool
    """False: the defaults stand for a config that nobody has given, and its sizes mean nothing."""
    prefect_url: str | None
    prefect_version: str
    """Of the package here."""
    prefect_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    queue_limit_s: float = 60.0


def checks_of(site: Site) -> list[Check]:
    """All of them, in the order in which a person reads them."""
    return [*_machine(site), *_storage(site), *_services(site), *_slurm(site)]


def _machine(site: Site) -> list[Check]:
    launcher, group = site.config.launcher, "this machine"
    local = launcher.kind == "local"
    gpus = launcher.processes_per_node if local and machine.has_gpu_device() else None
    needed = _snapshots(site) if local else None
    memory = partial(machine.check_memory_folder, folder=_MEMORY_FOLDER, needed_bytes=needed)
    probe_s = machine.PROBE_LIMIT_S + 5.0
    return [
        Check(group, "Python", machine.check_python),
        Check(group, "packages", machine.check_packages),
        Check(group, "torch", partial(machine.check_torch, gpus_needed=gpus), limit_s=probe_s),
        Check(group, "megatron-core", machine.check_megatron, limit_s=probe_s),
        Check(group, "node memory", memory),
        Check(group, "open files", machine.check_open_files),
    ]


def _storage(site: Site) -> list[Check]:
    config, group = site.config, "storage"
    folder, url = config.resolved_run_dir(), config.checkpoint.storage
    size = None if url or not site.has_config else _checkpoint_bytes(config)
    check: Look = partial(storage.check_checkpoint_storage, url=url or "")
    if url is None:
        check = _skip(
            "checkpoint storage", "checkpoint.storage is not set: the run directory holds them"
        )
    return [
        Check(group, "run folder", partial(storage.check_folder, folder=folder)),
        Check(
            group, "disk room", partial(storage.check_room, folder=folder, checkpoint_bytes=size)
        ),
        Check(group, "checkpoint storage", check, limit_s=60.0),
    ]


def _services(site: Site) -> list[Check]:
    group = "services"
    prefect = partial(
        services.check_prefect,
        url=site.prefect_url,
        headers=site.prefect_headers,
        version_here=site.prefect_version,
    )
    model = partial(services.check_language_model, config=site.config.diagnose)
    return [
        Check(group, "Prefect", prefect),
        Check(group, "MLflow", partial(_check_tracking, config=site.config)),
        Check(group, "language model", model),
    ]


def _check_tracking(_: threading.Event, config: RunConfig) -> Finding:
    if not config.tracking.enabled:
        return skipped("MLflow", "tracking.enabled is false")
    uri = resolve_tracking_uri(config.tracking, RunDir(config.resolved_run_dir()))
    try:
        return ok("MLflow", check_writable(uri, timeout_s=services.TIMEOUT_S))
    except TrackingUnreachableError as error:
        return failed("MLflow", f"{error}: check tracking.uri")


def _slurm(site: Site) -> list[Check]:
    launcher, group = site.config.launcher, "Slurm"
    if launcher.kind != "slurm" and launcher.slurm != SlurmConfig():
        words = f"launcher.slurm is set, but launcher.kind is {launcher.kind}: give launcher.kind=slurm too"
        return [Check(group, "Slurm", lambda _: [warning("Slurm", words)])]
    if launcher.kind != "slurm":
        return [Check(group, "Slurm", _skip("Slurm", f"launcher.kind is {launcher.kind}"))]
    folder = site.config.resolved_run_dir()
    token = partial(slurm.check_token, site=launcher.slurm, folder=folder)
    probe = NodeProbe(launcher, folder, site.queue_limit_s, _snapshots(site))
    return [
        Check(group, "Slurm token", token, limit_s=45.0),
        Check(group, "Slurm REST", partial(slurm.check_rest, site=launcher.slurm), limit_s=60.0),
        Check(group, "Slurm job", partial(check_nodes, probe=probe), limit_s=probe.limit_s),
    ]


def _skip(subject: str, why: str) -> Look:
    return lambda _: [skipped(subject, why)]


def _snapshots(site: Site) -> int | None:
    """Bytes in a node's memory; None where it is not known or not used."""
    config = site.config
    if not site.has_config or config.checkpoint.memory == "off":
        return None
    return config.checkpoint.buffers * snapshot_bytes(config) * config.launcher.processes_per_node


def _checkpoint_bytes(config: RunConfig) -> int:
    vocabulary = padded_vocab_size(config.data.tokenizer.vocab_size)
    return count_parameters(config.model, vocabulary) * _BYTES_PER_PARAMETER.get(
        config.train.precision, 12
    )
