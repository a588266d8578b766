"""A site's Slurm: its token, its REST interface, its partitions."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

from configs.errors import LaunchError
from configs.slurm_schema import SlurmConfig
from infra.doctor.findings import Finding, failed, ok, skipped, warning
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_errors import SlurmTokenError
from infra.launch.slurm_token import expires_at, owner_of, token_source
from infra.launch.slurm_types import SlurmNode, split_names
from infra.launch.slurm_user import user_of, user_problem

_SOON_S = 3600.0
_HOUR_S = 3600.0


def check_token(_: threading.Event, site: SlurmConfig, folder: Path) -> Finding:
    """Whether there is one, only its owner can read it, for how long it holds, and whether its jobs' user can
    write to the run's folder."""
    subject = "Slurm token"
    source = token_source(site.token_file, site.token_command)
    try:
        token = source.token()
    except SlurmTokenError as error:
        return failed(subject, str(error))
    problem = user_problem(user_of(site), owner_of(token), folder)
    if problem is not None:
        return failed(subject, problem)
    end = expires_at(token)
    if end is None:
        return ok(subject, f"of {source.where}; it does not say when it expires")
    left_s = end - time.time()
    words = f"of {source.where}; expires in {left_s / _HOUR_S:.1f} h"
    if left_s < _SOON_S and site.token_file is not None:
        return warning(
            subject, f"{words}: renew the file in time, by cron: `scontrol token lifespan=86400`"
        )
    return ok(subject, words)


def check_rest(_: threading.Event, site: SlurmConfig) -> list[Finding]:
    """Whether the server speaks with us, and knows the partitions that the config names."""
    client = SlurmClient(
        site.url or "",
        user_of(site),
        token_source(site.token_file, site.token_command),
    )
    with closing(client):
        try:
            version = client.dialect.version
            partitions = client.partitions()
            nodes = client.nodes()
        except LaunchError as error:
            return [
                failed("Slurm REST", str(error)),
                skipped("Slurm partition", "the server could not be asked"),
            ]
    usable = [node for node in nodes if node.usable]
    rest = f"{site.url} speaks {version}; {len(usable)} of {len(nodes)} nodes can be used"
    found = [ok("Slurm REST", rest)]
    if not usable:
        found = [warning("Slurm REST", f"{rest}: see `sinfo` for why")]
    return [*found, *judge_partitions(site, partitions, usable)]


def judge_partitions(
    site: SlurmConfig, partitions: list[str], usable: list[SlurmNode]
) -> list[Finding]:
    """Each setting's partitions are there, and each has a node that can be used."""
    subject = "Slurm partition"
    found, words = [], []
    for setting in ("partition", "low_priority_partition", "cpu_partition"):
        for wanted in split_names(getattr(site, setting)):
            if wanted not in partitions:
                sentence = (
                    f"{wanted!r} does not exist: set launcher.slurm.{setting} to one of "
                    f"{', '.join(partitions)}"
                )
                found.append(failed(subject, sentence))
                continue
            here = [node for node in usable if wanted in node.partitions]
            if not here:
                sentence = f"{wanted} ({setting}) has no node that can be used: see `sinfo` for why"
                found.append(warning(subject, sentence))
            count = "1 node" if len(here) == 1 else f"{len(here)} nodes"
            words.append(f"{wanted} with {count} that can be used")
    if found:
        return found
    return [ok(subject, ", ".join(words) or "none is named: jobs go to the site's default")]
