"""The launcher of somebody who uses the tests' cluster."""

from __future__ import annotations

from typing import Any

import pytest
from job_helpers import slurm_config

from infra.launch import make_launcher
from infra.launch.base import Launcher


@pytest.fixture
def launcher(slurm_site: Any) -> Launcher:
    return make_launcher(slurm_config(slurm_site))
