"""One Prefect server for all commands that these tests run: each would start its own for seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A real server on a port of its own; commands find it through PREFECT_API_URL."""
    if "PREFECT_API_URL" in os.environ:  # Another module's that imports this fixture has begun.
        yield
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    server = subprocess.Popen(
        [*command, "--port", str(port), "--no-ui"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    api = f"http://127.0.0.1:{port}/api"
    deadline = time.monotonic() + 180
    while True:
        assert server.poll() is None and time.monotonic() < deadline, "Prefect did not start"
        try:
            if httpx.get(f"{api}/health", timeout=2).is_success:
                break
        except httpx.TransportError:
            time.sleep(0.2)
    os.environ["PREFECT_API_URL"] = api
    yield
    os.environ.pop("PREFECT_API_URL")
    server.terminate()
    server.wait(30)
