"""A temporary Prefect server for one command, where no server is configured.

Prefect would start one itself, but in the terminal's process group: a Ctrl-C then kills the server
under the flow, which goes on retrying for minutes, and a flow that is killed leaves its server
behind. This one has a session of its own and dies with its flow. It serves the local database, the
same that `overland ui` shows.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from configs.errors import OverlandError
from flows.servers import stop, wait_until_up
from infra.launch import leash

START_LIMIT_S = 180.0
_HOST = "127.0.0.1"
_BACKLOG = 2048
"""Calls that may wait to be taken; uvicorn's own default."""


def use_prefect_server() -> None:
    """Have a Prefect server for the rest of this process: the configured one, or a temporary one.

    A temporary one is ended after Prefect has sent what it still had to say.
    """
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        return
    _, url = start_prefect_server()
    os.environ["PREFECT_API_URL"] = url
    refresh_global_settings_context()


def start_prefect_server(
    environment: Mapping[str, str] = os.environ,
) -> tuple[subprocess.Popen[bytes], str]:
    """A server that dies with this process, and its address; it is up when this returns.

    `atexit` ends it. `environment` says where it keeps its database (PREFECT_HOME).
    """
    # Bound here and handed on: a port that is free now could be another's by the time it starts.
    with socket.create_server((_HOST, 0), backlog=_BACKLOG) as listening:
        url = f"http://{_HOST}:{listening.getsockname()[1]}/api"
        server = _start(listening.fileno(), environment)
    atexit.register(stop, server)
    if not wait_until_up(server, f"{url}/health", START_LIMIT_S):
        raise OverlandError(
            "Prefect's temporary server did not start: `prefect server start` shows why, or point "
            "PREFECT_API_URL at a server"
        )
    return server, url


def _start(listening_fd: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The server as Prefect starts its own temporary one: no pages, no background services."""
    server = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
    return subprocess.Popen(
        [
            *(sys.executable, str(Path(leash.__file__)), *server),
            *("--fd", str(listening_fd), "--log-level", "error"),
        ],
        pass_fds=[listening_fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**environment, "PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"},
        start_new_session=True,
    )
