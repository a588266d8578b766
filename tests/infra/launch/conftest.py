"""The launchers that must pass the contract tests: another one is one more parameter."""

from __future__ import annotations

import pytest

from configs.schema import LauncherConfig
from infra.launch import make_launcher
from infra.launch.base import Launcher


@pytest.fixture(params=["local"])
def launcher_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def launcher(launcher_kind: str) -> Launcher:
    return make_launcher(LauncherConfig.model_validate({"kind": launcher_kind}))
