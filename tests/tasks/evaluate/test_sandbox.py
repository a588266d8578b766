"""Work that runs a model's code: what it can reach, and what ends it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.errors import EvaluationError
from tasks.evaluate import sandbox_kernel
from tasks.evaluate.sandbox import Limits, confined

LIMITS = Limits(memory_bytes=256 << 20, time_s=60.0)


def outcome(action: Callable[[], Any]) -> str:
    try:
        return repr(action())
    except (OSError, MemoryError) as error:
        return type(error).__name__


def probe(folder: Path) -> dict[str, str]:
    """What confined code meets."""
    return {
        "network": outcome(lambda: socket.create_connection(("127.0.0.1", 9), 1.0)),
        "memory": outcome(lambda: len(bytearray(1 << 30))),
        "file": outcome(lambda: (folder / "new").write_text("x")),
        "scratch": outcome(lambda: Path("new").write_text("x")),
        "program": outcome(lambda: subprocess.run(["echo"], check=True).returncode),
        "secret": outcome(lambda: os.environ.get("SECRET_TOKEN")),
        "others": outcome(lambda: os.kill(os.getppid() or 1, 0)),
    }


@pytest.fixture
def has_namespaces() -> bool:
    return subprocess.run(["unshare", "-rnpf", "true"], check=False).returncode == 0


def test_confined_work_reaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_namespaces: bool
) -> None:
    if not has_namespaces:
        pytest.skip("this kernel grants no namespaces to this user")
    monkeypatch.setenv("SECRET_TOKEN", "1")
    opened = (tmp_path / "log").open("w")  # a file that is open does not keep its folder writable
    found = confined(lambda: tmp_path, probe, LIMITS)
    opened.close()
    assert found == {
        "network": "OSError",
        "memory": "MemoryError",
        "file": "OSError",
        "scratch": "1",
        "program": "0",
        "secret": "None",
        "others": "None",  # itself: it sees no other process
    }
    assert not (tmp_path / "new").exists()


def test_without_namespaces_sockets_are_refused_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox_kernel, "unshare", lambda: False)
    found = confined(lambda: tmp_path, probe, LIMITS)
    assert found["network"] == "PermissionError"
    assert found["memory"] == "MemoryError"
    assert "runs without: read-only files, hidden processes" in capfd.readouterr().err


def test_limits_end_it() -> None:
    def endless(_: object) -> None:
        while True:
            time.sleep(1)

    def broken(_: object) -> None:
        raise ValueError("of the task")

    with pytest.raises(EvaluationError, match="took longer than 1 s"):
        confined(lambda: None, endless, Limits(memory_bytes=1 << 28, time_s=1.0))
    with pytest.raises(EvaluationError, match="ValueError: of the task"):
        confined(lambda: None, broken, LIMITS)
    with pytest.raises(EvaluationError, match="was killed"):
        confined(lambda: None, lambda _: os._exit(1), LIMITS)
