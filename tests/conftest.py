"""Homes of their own for every tool that would write into the user's.

Set before any test imports Prefect, MLflow or a Hugging Face library.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_HOME = tempfile.mkdtemp(prefix="overland-tests-")
os.environ.update(
    PREFECT_HOME=f"{_HOME}/prefect",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    DO_NOT_TRACK="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    HF_HOME=f"{_HOME}/huggingface",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
)
# A shell that starts its commands in the background has them ignore Ctrl-C, and so would the
# processes that these tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "MLFLOW_TRACKING_URI"):
    os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def _remove_home() -> Iterator[None]:
    yield
    import shutil

    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run directory that does not exist yet."""
    return tmp_path / "runs" / "test"
