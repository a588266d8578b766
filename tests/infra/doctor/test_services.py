"""Servers that answer, refuse, are something else, or are not there."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from configs.diagnose_schema import DiagnoseConfig
from infra.doctor.findings import Status
from infra.doctor.services import check_language_model, check_prefect, judge_clock, judge_date
from infra.track.errors import TrackingUnreachableError
from infra.track.reachable import check_writable

STOP = threading.Event()
Serve = Callable[[int, bytes], str]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers that give one answer to everything."""
    servers: list[tuple[HTTPServer, threading.Thread]] = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Not into the test's output."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


# --- Prefect --------------------------------------------------------------------------------------


def test_prefect(serve: Serve) -> None:
    (none,) = check_prefect(STOP, None, {}, "3.9.1")
    assert none.status is Status.SKIPPED

    same, clock = check_prefect(STOP, serve(200, b'"3.9.0"'), {}, "3.9.1")
    assert (same.status, clock.status) == (Status.OK, Status.OK)
    older, _ = check_prefect(STOP, serve(200, b'"3.9.4"'), {}, "3.10.1")
    assert (older.status, "older than the Prefect here" in older.sentence) == (Status.WARNING, True)
    (too_old,) = check_prefect(STOP, serve(200, b'"2.20.3"'), {}, "3.9.1")
    assert (too_old.status, "too old" in too_old.sentence) == (Status.FAILED, True)
    (refused,) = check_prefect(STOP, serve(401, b""), {}, "3.9.1")
    assert (refused.status, "does not let us" in refused.sentence) == (Status.FAILED, True)
    (other,) = check_prefect(STOP, serve(200, b"<html>"), {}, "3.9.1")
    assert (other.status, "no Prefect server's API" in other.sentence) == (Status.FAILED, True)
    url = f"http://me:secret@127.0.0.1:{free_port()}/api"
    (gone,) = check_prefect(STOP, url, {}, "3.9.1")
    assert (gone.status, "cannot be reached" in gone.sentence) == (Status.FAILED, True)
    assert "secret" not in gone.sentence


def test_clocks() -> None:
    now = time.time()
    assert judge_clock("clock", now, now + 3, now + 1).status is Status.OK
    behind = judge_clock("clock", now, now + 1, now - 60)
    assert (behind.status, "60 s behind" in behind.sentence) == (Status.WARNING, True)
    ahead = judge_date("clock", now, now, formatdate(now + 120))
    assert (ahead.status, "ahead of the clock here" in ahead.sentence) == (Status.WARNING, True)
    assert judge_date("clock", now, now, formatdate(now)).status is Status.OK
    assert judge_date("clock", now, now, None).status is Status.SKIPPED
    assert judge_date("clock", now, now, "yesterday").status is Status.SKIPPED


# --- the language model ---------------------------------------------------------------------------


def test_language_model(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_language_model(STOP, DiagnoseConfig()).status is Status.SKIPPED
    models = json.dumps({"data": [{"id": "small"}, {"id": "large"}]}).encode()

    def look(url: str, model: str = "small", key_env: str | None = None) -> tuple[Status, str]:
        config = DiagnoseConfig(endpoint=f"{url}/v1", model=model, api_key_env=key_env)
        found = check_language_model(STOP, config)
        return found.status, found.sentence

    assert look(serve(200, models))[0] is Status.OK
    status, sentence = look(serve(200, models), "huge")
    assert (status, "set diagnose.model to one of small, large" in sentence) == (
        Status.FAILED,
        True,
    )
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    status, sentence = look(serve(200, models), key_env="NO_SUCH_KEY")
    assert (status, "NO_SUCH_KEY is not set" in sentence) == (Status.FAILED, True)
    assert look(serve(401, b""))[0] is Status.FAILED
    assert look(serve(404, b""))[0] is Status.WARNING
    assert look(serve(200, b"<html>"))[0] is Status.FAILED
    status, sentence = look(f"http://127.0.0.1:{free_port()}")
    assert (status, "cannot be reached" in sentence) == (Status.FAILED, True)


# --- MLflow ---------------------------------------------------------------------------------------


def refused(uri: str, timeout_s: float = 5.0) -> str:
    with pytest.raises(TrackingUnreachableError) as error:
        check_writable(uri, timeout_s=timeout_s)
    return str(error.value)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from infra.track.server import create_database

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    create_database(path)
    return path


def test_mlflow_in_sqlite(tmp_path: Path, database: Path) -> None:
    new = tmp_path / "runs" / "mlflow.db"
    assert check_writable(f"sqlite:///{new}", timeout_s=5) == f"{new} will be made"
    assert list(tmp_path.iterdir()) == []
    before = database.read_bytes()
    assert "can be written" in check_writable(f"sqlite:///{database}", timeout_s=5)
    assert "can be written" in check_writable(f"sqlite+pysqlite:///{database}", timeout_s=5)
    assert database.read_bytes() == before

    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert "database is locked" in refused(f"sqlite:///{database}", timeout_s=0.1)
    other.close()
    (tmp_path / "text.db").write_text("no database at all, but longer than its header would be" * 3)
    assert "file is not a database" in refused(f"sqlite:///{tmp_path / 'text.db'}")
    assert "cannot be written" in refused("sqlite:////proc/mlflow.db")


def test_mlflow_that_is_no_mlflow_or_not_there(serve: Serve) -> None:
    url = f"http://me:secret@127.0.0.1:{free_port()}"
    assert "cannot be reached" in refused(url)
    assert "secret" not in refused(url)
    assert "does not let us (401)" in refused(serve(401, b""))
    assert "does not answer as an MLflow server does" in refused(serve(200, b"<html>"))
    words = refused("postgresql+nodriver://me:secret@127.0.0.1/mlflow")
    assert "cannot be written" in words
    assert "secret" not in words


@pytest.fixture
def mlflow_server(database: Path) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--workers", "1", "--backend-store-uri", f"sqlite:///{database}"],
        cwd=database.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while True:
        assert server.poll() is None and time.monotonic() < deadline, "MLflow did not start"
        try:
            if httpx.get(f"{url}/health", timeout=2).is_success:
                break
        except httpx.TransportError:
            time.sleep(0.2)
    yield url
    server.terminate()
    server.wait(60)


@pytest.mark.soak
@pytest.mark.slow
def test_mlflow_behind_a_server(mlflow_server: str) -> None:
    assert check_writable(mlflow_server, timeout_s=30) == f"server at {mlflow_server} takes changes"
    answer = httpx.post(
        f"{mlflow_server}/api/2.0/mlflow/runs/search", json={"experiment_ids": ["0"]}, timeout=30
    )
    assert answer.json() == {}
