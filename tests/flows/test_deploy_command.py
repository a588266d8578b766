"""`overland deploy` against real Prefect servers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.prefect_server import start_prefect_server
from tests.flows.helpers import overland, tiny_config
from tests.flows.prefect_api import Api

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Empty, and with a password."""
    environment = os.environ | {"PREFECT_SERVER_API_AUTH_STRING": "admin:secret"}
    with tempfile.TemporaryDirectory() as home:
        process, url = start_prefect_server(environment | {"PREFECT_HOME": home})
        yield url
        process.terminate()
        process.wait()


@pytest.fixture
def api(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:secret")
    with httpx.Client(base_url=server, timeout=30, auth=("admin", "secret")) as client:
        yield Api(client)


def deploy(server: str, *arguments: str | Path) -> dict[str, Any]:
    """What it says that it has done."""
    done = overland("deploy", "--server", server, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def changed(report: dict[str, Any]) -> dict[str, str]:
    return {c["what"]: c["verb"] for c in report["changes"] if c["verb"] != "unchanged"}


def test_it_changes_what_differs_and_leaves_the_rest_alone(server: str, api: Api) -> None:
    dry = deploy(server, "--dry-run")
    assert api.post("/deployments/filter", {}) == []
    assert api.automations() == {}
    first = deploy(server)
    assert changed(first) == changed(dry)
    assert len(changed(first)) == len(first["changes"]) == 9
    assert first["pools_without_worker"] == ["overland"]
    assert changed(deploy(server)) == {}

    # Somebody has been at it on the page.
    pipeline = api.deployment("pipeline", "pipeline")
    api.request("PATCH", f"/deployments/{pipeline['id']}", {"concurrency_limit": 3})
    own = {"schedule": {"cron": "5 5 * * *", "timezone": "UTC"}, "active": True}
    api.request("POST", f"/deployments/{pipeline['id']}/schedules", [own])  # type: ignore[arg-type]
    restart = api.automations()["overland: restart crashed flow runs"]
    api.request("PATCH", f"/automations/{restart['id']}", {"enabled": False})
    evaluate = api.automations()["evaluate__automation_1"]
    api.request("DELETE", f"/automations/{evaluate['id']}")

    report = deploy(server)
    assert changed(report) == {
        "deployment pipeline/pipeline": "changed",
        "automation 'evaluate__automation_1'": "created",
    }
    assert ["concurrency_limit: 3 -> none"] in [c["details"] for c in report["changes"]]
    pipeline = api.deployment("pipeline", "pipeline")
    assert pipeline["global_concurrency_limit"] is None
    assert [s["schedule"]["cron"] for s in pipeline["schedules"]] == ["5 5 * * *"]
    assert not api.automations()["overland: restart crashed flow runs"]["enabled"]
    assert changed(deploy(server)) == {}


@pytest.mark.soak
def test_a_run_gets_a_deployment_of_its_own_with_a_schedule(
    tmp_path: Path, server: str, api: Api
) -> None:
    config = tiny_config(tmp_path, name="nightly")
    deploy(server)
    at_night = ("--run", config, "--cron", "0 2 * * *", "--timezone", "Europe/Berlin")
    assert set(changed(deploy(server, *at_night))) == {
        "deployment pipeline/nightly",
        "schedule overland-cron of pipeline/nightly",
    }
    assert changed(deploy(server, *at_night)) == {}
    found = api.deployment("pipeline", "nightly")
    assert found["parameters"]["config"]["run_dir"] == str(tmp_path / "run")
    assert found["global_concurrency_limit"]["limit"] == 1
    (schedule,) = found["schedules"]
    assert (schedule["schedule"]["cron"], schedule["active"]) == ("0 2 * * *", True)

    later = deploy(server, "--run", config, "train.steps=24", "--cron", "0 3 * * *")
    assert set(changed(later).values()) == {"changed"}
    found = api.deployment("pipeline", "nightly")
    assert found["parameters"]["config"]["train"]["steps"] == 24
    assert [s["schedule"]["cron"] for s in found["schedules"]] == ["0 3 * * *"]

    assert changed(deploy(server, "--remove", "nightly")) == {
        "deployment pipeline/nightly": "removed"
    }
    nowhere = (*at_night[:4], "--timezone", "Europe/Nowhere")
    done = overland("deploy", "--server", server, *nowhere)
    assert (done.returncode, "give a name like Europe/Berlin" in done.stderr) == (2, True)
    done = overland("deploy", "--server", server, "--remove", "nightly")
    assert (done.returncode, "no deployment pipeline/nightly" in done.stderr) == (2, True)


@pytest.mark.soak
def test_a_pool_of_another_type_is_not_touched(tmp_path: Path, server: str, api: Api) -> None:
    api.post("/work_pools/", {"name": "pods", "type": "kubernetes"})
    file = tmp_path / "prefect.yaml"
    text = (Path(__file__).parent.parent.parent / "prefect.yaml").read_text()
    file.write_text(text.replace("name: overland\n    work_queue", "name: pods\n    work_queue"))
    done = overland("deploy", "--server", server, "--file", file)
    assert done.returncode == 1
    assert "work pool 'pods' is there with the type 'kubernetes'" in done.stderr


def test_without_the_password_it_is_refused(server: str) -> None:
    done = overland("deploy", "--server", server)
    assert done.returncode == 1
    assert "does not let us (401): set PREFECT_API_AUTH_STRING" in done.stderr


class OldServer(BaseHTTPRequestHandler):
    """Says of itself that it is old; nothing else is asked of it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'"2.20.3"' if self.path.startswith("/api/") else b"<html>")

    def log_message(self, *_: object) -> None:
        """Not into the test's output."""


@pytest.fixture
def old_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), OldServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def failed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = overland("deploy", *arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done


def test_a_server_that_is_too_old_or_none_at_all(old_server: str) -> None:
    done = failed("--server", f"{old_server}/api")
    assert (done.returncode, "is 2.20.3, which is too old" in done.stderr) == (1, True)
    done = failed("--server", old_server)
    assert (done.returncode, "its address ends with /api" in done.stderr) == (1, True)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/api"
    done = failed("--server", url)
    assert (done.returncode, f"{url} cannot be reached" in done.stderr) == (1, True)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    done = failed()
    assert (done.returncode, "set PREFECT_API_URL or give --server" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("deployments: {", "is no YAML"),
        ("name: x", "has no list `deployments`"),
        ("deployments: [{name: a}]", "needs a name and an entrypoint"),
        ("deployments: [{name: a, entrypoint: 'flows/none.py:a'}]", "is no flow"),
        (
            "deployments: [{name: a, entrypoint: 'flows/prepare.py:prepare'}]",
            "work_pool.name is missing",
        ),
        (
            "deployments: [{name: a, entrypoint: 'flows/prepare.py:prepare', work_pool: {name: p}, "
            "schedules: [{slug: s, cron: '61 * * * *'}]}]",
            'Invalid cron string: "61 * * * *"',
        ),
        (
            "deployments: [{name: a, entrypoint: 'flows/prepare.py:prepare', build: x}]",
            "has a key 'build'",
        ),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: str, sentence: str) -> None:
    from configs.errors import ConfigError
    from flows.deploy.wanted import read_wanted

    file = tmp_path / "prefect.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as error:
        read_wanted(file)
    assert sentence in str(error.value)
