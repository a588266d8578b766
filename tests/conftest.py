"""Homes of their own for every tool that would write into the user's.

Set before any test imports Prefect, MLflow or a Hugging Face library.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tasks.train.s3_server import S3Server

_HOME = tempfile.mkdtemp(prefix="overland-tests-")
os.environ.update(
    PREFECT_HOME=f"{_HOME}/prefect",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    DO_NOT_TRACK="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    HF_HOME=f"{_HOME}/huggingface",
    OVERLAND_PRIORS=f"{_HOME}/priors.db",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
)
# A shell that starts its commands in the background has them ignore Ctrl-C, and so would the
# processes that these tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "MLFLOW_TRACKING_URI"):
    os.environ.pop(name, None)


SOAK_TIMEOUT_S = 3600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("soak") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SOAK_TIMEOUT_S))
    # Files that start jobs first: at the end they would leave cores idle.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def _remove_home() -> Iterator[None]:
    yield
    import shutil

    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run directory that does not exist yet."""
    return tmp_path / "runs" / "test"


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server, one for each file of tests."""
    from tests.tasks.train.s3_server import S3Server  # Only now: it takes a second to import.

    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server without faults, and the environment that leads to it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    s3_server.reset()
    return s3_server
