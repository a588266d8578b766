"""Starting jobs, watching them, ending them: the seam (base.py) and one file a place to run.

This package's import stays light: the supervisor of every local job passes through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from configs.schema import LauncherConfig
    from infra.launch.base import Launcher


def make_launcher(config: LauncherConfig) -> Launcher:
    """The launcher that the config asks for."""
    if config.kind == "slurm":
        from infra.launch.slurm_site import slurm_launcher

        return slurm_launcher(config)
    from infra.launch.local import LocalLauncher

    return LocalLauncher()


def require_site(
    config: LauncherConfig, *, begun: bool = False, folder: Path | None = None
) -> None:
    """Raise SiteError when no job of this config can be submitted, as far as the cluster can be asked
    beforehand. `begun`: jobs of the run are on record, so a cluster that is away is waited for. `folder`: where they
    write."""
    if config.kind == "slurm":
        from infra.launch.slurm_site import require_slurm

        require_slurm(config, begun=begun, folder=folder)
