"""The launchers that must pass the contract tests: another one is one more parameter."""

from __future__ import annotations

import pytest
from job_helpers import slurm_config

from configs.schema import LauncherConfig
from infra.launch import make_launcher
from infra.launch.base import Launcher


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slow)])
def launcher_config(request: pytest.FixtureRequest) -> LauncherConfig:
    if request.param == "slurm":
        return slurm_config(request.getfixturevalue("slurm_site"))
    return LauncherConfig()


@pytest.fixture
def launcher(launcher_config: LauncherConfig) -> Launcher:
    return make_launcher(launcher_config)
