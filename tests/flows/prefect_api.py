"""A Prefect server's API as its page uses it, and a worker beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from configs.load import load_config

LIMIT_S = 300.0


class Api:
    """What the page does, through the server's API."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def request(self, method: str, path: str, content: dict[str, Any] | None = None) -> Any:
        """Prefect says 503, try again, while its SQLite is locked by another request."""
        for _ in range(30):
            response = self._client.request(method, path, json=content)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(1)
        response.raise_for_status()
        return response.json() if response.content else None

    def post(self, path: str, content: dict[str, Any]) -> Any:
        return self.request("POST", path, content)

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def deployment(self, flow: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/deployments/name/{flow}/{name}")
        return found

    def start(self, name: str, config: Path) -> str:
        """Start a flow run of a deployment, with what a person fills into its form."""
        given = load_config(config).model_dump(mode="json", exclude_unset=True)
        path = f"/deployments/{self.deployment(name, name)['id']}/create_flow_run"
        return str(self.post(path, {"parameters": {"config": given}})["id"])

    def cancel(self, flow_run: str) -> None:
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self.post(f"/flow_runs/{flow_run}/set_state", {"state": state})

    def state_of(self, flow_run: str) -> str:
        return str(self.get(f"/flow_runs/{flow_run}")["state"]["type"])

    def states_of(self, flow_run: str) -> list[str]:
        """All of its states, by their names, oldest first."""
        states = self.get(f"/flow_run_states/?flow_run_id={flow_run}")
        return [s["name"] for s in sorted(states, key=lambda s: str(s["timestamp"]))]

    def runs_of(self, flow: str) -> list[dict[str, Any]]:
        wanted = {"flows": {"name": {"any_": [flow]}}}
        runs: list[dict[str, Any]] = self.post("/flow_runs/filter", wanted)
        return runs

    def automations(self) -> dict[str, dict[str, Any]]:
        """By name."""
        found: list[dict[str, Any]] = self.post("/automations/filter", {})
        assert len({a["name"] for a in found}) == len(found)
        return {a["name"]: a for a in found}


class Worker:
    """A worker of the pool, which runs one flow at a time."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "worker.log"
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "overland"]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--limit", "1"],
                cwd=folder,
                env=os.environ | {"PREFECT_WORKER_QUERY_SECONDS": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def flows(self) -> list[psutil.Process]:
        """The processes of its flow runs."""
        return psutil.Process(self._process.pid).children()

    def kill(self) -> None:
        if self._process.poll() is not None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
