"""The first contact with a site: what can be known of it before anything is submitted.

Whoever has just started a run still looks. So a server that is away is not waited for as it is later,
and what is wrong with the config is said at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from configs.errors import LaunchError, SiteError
from configs.slurm_schema import SlurmConfig
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_errors import SlurmError, seconds
from infra.launch.slurm_jobs import T, patiently
from infra.launch.slurm_types import split_names
from infra.launch.slurm_user import user_problem

logger = logging.getLogger(__name__)

FIRST_CONTACT_S = 10.0
PARTITION_SETTINGS = ("partition", "low_priority_partition", "cpu_partition")


class NoContactError(LaunchError):
    """The server has not answered at all."""


def first_contact(client: SlurmClient, *, patience_s: float) -> None:
    """Have the server answer before the first job is submitted."""
    if not client.has_answered:
        _ask(lambda: client.dialect, min(patience_s, FIRST_CONTACT_S))


def check_site(
    client: SlurmClient, site: SlurmConfig, *, begun: bool, folder: Path | None = None
) -> None:
    """Raise SiteError when no job of this config can be submitted, as far as the server can be asked.

    `begun`: jobs of the run are on record. They go on, and a server that is away is waited for as ever. `folder`: what jobs
    must be able to write to.
    """
    patience_s = 0.0 if begun else min(site.patience_s, FIRST_CONTACT_S)
    try:
        partitions = _ask(client.partitions, patience_s)
        owner = client.token_owner
    except NoContactError as error:
        if begun:
            return
        raise SiteError(str(error)) from error
    except SlurmError as error:
        raise SiteError(str(error)) from error
    of_user = user_problem(client.user, owner, folder)
    if problems := [*unknown_partitions(site, partitions), *([of_user] if of_user else [])]:
        raise SiteError("\n".join(problems))


def unknown_partitions(site: SlurmConfig, partitions: Sequence[str]) -> Iterator[str]:
    """A sentence for each partition of the config that the server does not have."""
    for setting in PARTITION_SETTINGS:
        for name in split_names(getattr(site, setting)):
            if name not in partitions:
                yield (
                    f"launcher.slurm.{setting}: partition {name!r} does not exist: the server has "
                    f"{', '.join(partitions)}"
                )


def _ask(ask: Callable[[], T], patience_s: float) -> T:
    """What `ask` returns. NoContactError when the server is away, SlurmError when it refuses."""
    try:
        return patiently(ask, patience_s=patience_s, log=logger.info)
    except SlurmError:
        raise
    except LaunchError as error:
        raise NoContactError(
            f"Slurm has not answered for {seconds(patience_s)} ({error.__cause__}); no job was submitted: is "
            "launcher.slurm.url right, and is the server up?"
        ) from error
