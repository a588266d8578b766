"""Making a Slurm launcher: one client and one table of jobs for each site, whoever asks for them."""

from __future__ import annotations

import atexit
import getpass
import threading

from configs.errors import LaunchError
from configs.schema import LauncherConfig
from configs.slurm_checks import check_slurm
from infra.launch.slurm import SlurmLauncher
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_jobs import JobTable
from infra.launch.slurm_submit import Submitter
from infra.launch.slurm_token import token_source

_sites: dict[str, tuple[SlurmClient, JobTable]] = {}
_lock = threading.Lock()


def slurm_launcher(config: LauncherConfig) -> SlurmLauncher:
    """The launcher of the config's site."""
    if problems := list(check_slurm(config)):
        raise LaunchError("; ".join(problems))
    site = config.slurm
    with _lock:
        key = site.model_dump_json()
        if key not in _sites:
            _sites[key] = _make(config)
        client, table = _sites[key]
    return SlurmLauncher(client, table, Submitter(client, config), patience_s=site.patience_s)


def _make(config: LauncherConfig) -> tuple[SlurmClient, JobTable]:
    site = config.slurm
    client = SlurmClient(
        site.url or "",
        site.user or getpass.getuser(),
        token_source(site.token_file, site.token_command),
        scontrol=site.scontrol,
    )
    atexit.register(client.close)
    table = JobTable(client, interval_s=site.poll_interval_s, patience_s=site.patience_s)
    return client, table
