"""The launchers that must pass the contract tests: another one is one more parameter."""

from __future__ import annotations

from typing import Any

import pytest

from configs.schema import LauncherConfig
from infra.launch import make_launcher
from infra.launch.base import Launcher


def slurm_config(site: Any, **more: Any) -> LauncherConfig:
    """The config of somebody who uses this cluster, with the patience of a test."""
    conf = site.cluster.settings.conf
    slurm = {
        "url": site.url,
        "token_file": site.token_file,
        "scontrol": ["env", f"SLURM_CONF={conf}", "scontrol"],
        "network_interface": "lo",
        "poll_interval_s": 0.2,
        "patience_s": 60.0,
    }
    return LauncherConfig.model_validate({"kind": "slurm", "slurm": slurm | more})


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slow)])
def launcher_config(request: pytest.FixtureRequest) -> LauncherConfig:
    if request.param == "slurm":
        return slurm_config(request.getfixturevalue("slurm_site"))
    return LauncherConfig()


@pytest.fixture
def launcher(launcher_config: LauncherConfig) -> Launcher:
    return make_launcher(launcher_config)
