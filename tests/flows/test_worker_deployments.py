"""The deployments of prefect.yaml as an operator uses them: a server, a pool, a worker, the API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from configs.load import load_config
from configs.rundir import RunDir
from tests.flows.helpers import tiny_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 120.0


class Api:
    """What the page does, through the server's API."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def post(self, path: str, content: dict[str, Any]) -> Any:
        return self._answer(lambda: self._client.post(path, json=content))

    def get(self, path: str) -> Any:
        return self._answer(lambda: self._client.get(path))

    def _answer(self, ask: Callable[[], httpx.Response]) -> Any:
        """Prefect says 503, try again, while its SQLite is locked by another request."""
        for _ in range(30):
            response = ask()
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(1)
        return response.raise_for_status().json()

    def start(self, name: str, config: Path) -> str:
        """Start a flow run of a deployment, with what a person fills into its form."""
        deployment = self.get(f"/deployments/name/{name}/{name}")["id"]
        given = load_config(config).model_dump(mode="json", exclude_unset=True)
        path = f"/deployments/{deployment}/create_flow_run"
        return str(self.post(path, {"parameters": {"config": given}})["id"])

    def cancel(self, flow_run: str) -> None:
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self.post(f"/flow_runs/{flow_run}/set_state", {"state": state})

    def state_of(self, flow_run: str) -> str:
        return str(self.get(f"/flow_runs/{flow_run}")["state"]["type"])

    def runs_of(self, flow: str) -> list[dict[str, Any]]:
        wanted = {"flows": {"name": {"any_": [flow]}}}
        runs: list[dict[str, Any]] = self.post("/flow_runs/filter", wanted)
        return runs


def prefect(*arguments: str) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    environment = os.environ | {"OVERLAND_HOME": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, prefect_server: None) -> Iterator[Path]:
    """All deployments, and a worker that runs one flow at a time; its log."""
    del prefect_server
    prefect("work-pool", "create", "overland", "--type", "process")
    prefect("deploy", "--all")
    folder = tmp_path_factory.mktemp("worker")
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "overland"]
    with open(folder / "worker.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "--limit", "1"],
            cwd=folder,
            env=os.environ | {"PREFECT_WORKER_QUERY_SECONDS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield folder / "worker.log"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def api(worker: Path) -> Iterator[Api]:
    del worker
    with httpx.Client(base_url=os.environ["PREFECT_API_URL"], timeout=30) as client:
        yield Api(client)


def wait_for(condition: Callable[[], object], worker: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, worker.read_text()
        time.sleep(0.1)


def test_a_deployment_prepares_and_one_that_trains_is_cancelled_with_its_job(
    tmp_path: Path, api: Api, worker: Path
) -> None:
    config = tiny_config(
        tmp_path,
        parallel={"data": 1},
        launcher={"processes_per_node": 1},
        train={"steps": 1_000_000},
        checkpoint={"interval_steps": 100},
        evaluate={"enabled": True},
    )
    run = RunDir(tmp_path / "run")
    prepared = api.start("prepare", config)
    wait_for(lambda: api.state_of(prepared) == "COMPLETED", worker)
    assert run.manifest() is not None

    trained = api.start("pretrain", config)
    wait_for(lambda: api.runs_of("evaluate"), worker)
    assert run.committed_checkpoints()
    (evaluated, *_) = api.runs_of("evaluate")
    assert evaluated["parameters"] == {"run_dir": str(run.path)}

    for flow_run in [*(r["id"] for r in api.runs_of("evaluate")), trained]:
        api.cancel(flow_run)
    wait_for(lambda: api.state_of(trained) == "CANCELLED", worker)
    record = run.attempts()[-1].record()
    assert record is not None, worker.read_text()
    assert (record.outcome, record.reason) == ("cancelled", "the flow run was cancelled")
    left = [p for p in psutil.process_iter(["cmdline"]) if str(run.path) in str(p.info["cmdline"])]
    assert not left
