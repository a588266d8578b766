"""`overland ui`: the Prefect and MLflow pages over the data that runs on this machine leave.

The newest run in the folder says where MLflow is. A page that a setting already names (PREFECT_API_URL,
or an http tracking URI) is somebody's server: it is pointed to, not started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from configs.errors import ConfigError, OverlandError
from configs.files import resolved
from configs.load import load_config
from configs.rundir import RunDir
from configs.schema import TrackingConfig
from flows.servers import stop, wait_until_up
from flows.show import words
from infra.track import resolve_tracking_uri

START_LIMIT_S = 120.0


@dataclass
class Page:
    """A server that shows something, and where."""

    name: str
    url: str
    health_url: str
    command: list[str]


def serve_pages(runs: Path, *, prefect_port: int, mlflow_port: int) -> None:
    """Start both pages, say where they are, and serve until interrupted or one of them dies."""
    runs = resolved(runs)
    pages = [_prefect_page(prefect_port), _mlflow_page(runs, mlflow_port)]
    servers: list[tuple[Page, subprocess.Popen[bytes]]] = []
    try:
        for page in pages:
            if page.command:
                servers.append((page, _start(page, runs)))
        for page, server in servers:
            _check_up(page, server, _log(page, runs))
        for page in pages:
            typer.echo(f"{page.name:8} {page.url}")
        while servers:
            for page, server in servers:
                if server.poll() is not None:
                    raise OverlandError(
                        f"the {page.name} page has ended with {server.returncode}: "
                        f"see {_log(page, runs)}"
                    )
            time.sleep(1.0)
    finally:
        for _, server in servers:
            stop(server)


def _log(page: Page, runs: Path) -> Path:
    return runs / f"ui-{page.name.lower()}.log"


def _start(page: Page, runs: Path) -> subprocess.Popen[bytes]:
    runs.mkdir(parents=True, exist_ok=True)
    with open(_log(page, runs), "wb") as log:
        return subprocess.Popen(
            page.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # Six idle processes.
        )


def _prefect_page(port: int) -> Page:
    from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

    api_url = PREFECT_API_URL.value()
    if api_url:
        return Page("Prefect", PREFECT_UI_URL.value() or api_url, "", [])
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--log-level", "WARNING"]
    return Page("Prefect", url, f"{url}/api/health", command)


def _mlflow_page(runs: Path, port: int) -> Page:
    tracking_uri = newest_tracking_uri(runs)
    if tracking_uri.startswith("http"):
        return Page("MLflow", words.without_password(tracking_uri), "", [])
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", tracking_uri]
    return Page("MLflow", url, f"{url}/health", command)


def newest_tracking_uri(runs: Path) -> str:
    """Where the newest run in the folder is tracked; without one, where a run there would be."""
    configs = sorted(runs.glob("*/config.yaml"), key=lambda path: path.stat().st_mtime)
    for path in reversed(configs):
        with suppress(ConfigError):  # of another version: the one before it may tell
            return resolve_tracking_uri(load_config(path).tracking, RunDir(path.parent))
    return resolve_tracking_uri(TrackingConfig(), RunDir(runs / "any"))


def _check_up(page: Page, server: subprocess.Popen[bytes], log: Path) -> None:
    if wait_until_up(server, page.health_url, START_LIMIT_S):
        return
    if server.poll() is not None:
        raise OverlandError(
            f"the {page.name} page did not start (see {log}): is its port in use? "
            f"Choose another with --{page.name.lower()}-port"
        )
    raise OverlandError(f"the {page.name} page did not answer within {START_LIMIT_S:.0f} s")
