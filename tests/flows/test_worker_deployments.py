"""The deployments as an operator uses them: a server that `overland deploy` has set up, a worker, the API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from configs.rundir import RunDir
from tests.flows.helpers import overland, tiny_config
from tests.flows.prefect_api import Api, Worker

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


@pytest.fixture(scope="module")
def server(prefect_server: None) -> None:
    """All deployments are there."""
    del prefect_server
    done = overland("deploy")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def worker(tmp_path: Path, server: None) -> Iterator[Worker]:
    del server
    worker = Worker(tmp_path)
    yield worker
    worker.kill()


@pytest.fixture
def api() -> Iterator[Api]:
    with httpx.Client(base_url=os.environ["PREFECT_API_URL"], timeout=30) as client:
        yield Api(client)


@pytest.fixture
def quick_automation(api: Api, server: None) -> Iterator[None]:
    """A dead flow run is noticed after one heartbeat and a half, instead of after three."""
    del server
    automation = api.automations()["overland: mark flow runs of dead workers as crashed"]
    automation["trigger"]["within"] = 45
    read_only = ("id", "created", "updated")
    changed = {key: value for key, value in automation.items() if key not in read_only}
    api.request("PUT", f"/automations/{automation['id']}", changed)
    yield
    assert "changed" in overland("deploy").stdout


@pytest.mark.soak
def test_a_flow_run_whose_worker_was_killed_is_crashed_and_restarted_and_goes_on(
    tmp_path: Path, api: Api, worker: Worker, quick_automation: None
) -> None:
    config = tiny_config(
        tmp_path,
        parallel={"data": 1},
        launcher={"processes_per_node": 1},
        train={"steps": 3_000},
        checkpoint={"interval_steps": 200},
    )
    run = RunDir(tmp_path / "run")
    flow_run = api.start("pipeline", config)
    worker.wait_for(run.committed_checkpoints)
    flows = worker.flows()
    assert flows
    worker.kill()
    for process in flows:
        process.kill()

    successor = Worker(tmp_path)
    try:
        successor.wait_for(lambda: api.state_of(flow_run) == "COMPLETED")
    finally:
        successor.kill()
    states = api.states_of(flow_run)
    assert states.count("Crashed") == 1 and states.count("Running") == 2, states
    assert states.index("Crashed") < states.index("AwaitingRetry")
    assert [a.record().outcome for a in run.attempts()] == ["completed"]  # type: ignore[union-attr]
    assert run.committed_checkpoints()[-1].step == 3_000


@pytest.mark.soak
def test_a_deployment_prepares_and_one_that_trains_is_cancelled_with_its_job(
    tmp_path: Path, api: Api, worker: Worker
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
    worker.wait_for(lambda: api.state_of(prepared) == "COMPLETED")
    assert run.manifest() is not None

    trained = api.start("pretrain", config)
    worker.wait_for(lambda: api.runs_of("evaluate"))
    assert run.committed_checkpoints()
    (evaluated, *_) = api.runs_of("evaluate")
    assert evaluated["parameters"] == {"run_dir": str(run.path)}

    for flow_run in [*(r["id"] for r in api.runs_of("evaluate")), trained]:
        api.cancel(flow_run)
    worker.wait_for(lambda: api.state_of(trained) == "CANCELLED")
    record = run.attempts()[-1].record()
    assert record is not None, worker.log.read_text()
    assert (record.outcome, record.reason) == ("cancelled", "the flow run was cancelled")
    left = [p for p in psutil.process_iter(["cmdline"]) if str(run.path) in str(p.info["cmdline"])]
    assert not left
