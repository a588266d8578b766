"""Making a Slurm launcher: one client and one table of jobs for each site, whoever asks for them."""

from __future__ import annotations

import atexit
import threading
from pathlib import Path

from configs.errors import LaunchError, SiteError
from configs.schema import LauncherConfig
from configs.slurm_checks import check_slurm
from infra.launch.slurm import SlurmLauncher
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_contact import check_site
from infra.launch.slurm_jobs import JobTable
from infra.launch.slurm_submit import Submitter
from infra.launch.slurm_token import token_source
from infra.launch.slurm_user import user_of

_sites: dict[str, tuple[SlurmClient, JobTable]] = {}
_lock = threading.Lock()


def slurm_launcher(config: LauncherConfig) -> SlurmLauncher:
    """The launcher of the config's site."""
    if problems := list(check_slurm(config)):
        raise LaunchError("; ".join(problems))
    client, table = _shared(config)
    submitter = Submitter(client, config)
    return SlurmLauncher(client, table, submitter, patience_s=config.slurm.patience_s)


def require_slurm(config: LauncherConfig, *, begun: bool, folder: Path | None = None) -> None:
    """Raise SiteError when no job of this config can be submitted, as far as that can be asked; `begun`:
    jobs of the run are on record; `folder`: where they write."""
    if problems := list(check_slurm(config)):
        raise SiteError("\n".join(problems))
    client, _ = _shared(config)
    check_site(client, config.slurm, begun=begun, folder=folder)


def _shared(config: LauncherConfig) -> tuple[SlurmClient, JobTable]:
    """Of all that ask this site, in this process."""
    key = config.slurm.model_dump_json()
    with _lock:
        if key not in _sites:
            _sites[key] = _make(config)
        return _sites[key]


def _make(config: LauncherConfig) -> tuple[SlurmClient, JobTable]:
    site = config.slurm
    client = SlurmClient(
        site.url or "",
        user_of(site),
        token_source(site.token_file, site.token_command),
        scontrol=site.scontrol,
    )
    atexit.register(client.close)
    table = JobTable(client, interval_s=site.poll_interval_s, patience_s=site.patience_s)
    return client, table
