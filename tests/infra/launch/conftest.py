"""The launchers that must pass the contract tests: another one is one more parameter."""

from __future__ import annotations

import pytest
from job_helpers import slurm_config
from slurm_server import FakeSlurm

from configs.schema import LauncherConfig
from infra.launch import make_launcher, slurm_once
from infra.launch.base import Launcher


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slow)])
def launcher_config(request: pytest.FixtureRequest) -> LauncherConfig:
    if request.param == "slurm":
        return slurm_config(request.getfixturevalue("slurm_site"))
    return LauncherConfig()


@pytest.fixture
def launcher(launcher_config: LauncherConfig) -> Launcher:
    return make_launcher(launcher_config)


@pytest.fixture
def server() -> FakeSlurm:
    return FakeSlurm()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_once, "_RETRY_S", 0.01)
    monkeypatch.setattr(slurm_once, "_ON_ITS_WAY_S", 0.01)
