"""`overland doctor`: what it prints, its exit codes, and that it leaves nothing behind."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.flows.helpers import overland, tiny_config

pytestmark = pytest.mark.slow


def doctor(*arguments: str | Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the findings by their subject."""
    done = overland("doctor", "--json", *arguments)
    report = json.loads(done.stdout)
    assert report["ok"] == (done.returncode == 0)
    return done.returncode, {finding["subject"]: finding for finding in report["findings"]}


def test_a_site_that_is_well(tmp_path: Path, prefect_server: None) -> None:
    config = tiny_config(tmp_path, tracking={"enabled": True})
    before = sorted(tmp_path.iterdir())
    code, found = doctor("--config", config)
    assert code == 0, found
    for subject in ("torch", "megatron-core", "run folder", "disk room", "Prefect", "MLflow"):
        assert found[subject]["status"] in ("ok", "warning"), found[subject]
    assert found["Slurm"] == {
        "group": "Slurm",
        "subject": "Slurm",
        "status": "skipped",
        "sentence": "launcher.kind is local",
    }
    assert sorted(tmp_path.iterdir()) == before


def test_a_site_that_is_not(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, tracking={"enabled": True})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"tracking.uri=http://me:secret@127.0.0.1:{port}"
    done = overland("doctor", "--config", config, uri, f"checkpoint.storage=file:///proc/{port}")
    assert done.returncode == 1
    assert "failed   MLflow" in done.stdout
    assert "failed   checkpoint storage" in done.stdout
    assert "secret" not in done.stdout + done.stderr
    assert "2 failed" in done.stdout


def test_wrong_input(tmp_path: Path) -> None:
    assert overland("doctor", "--config", tmp_path / "none.yaml").returncode == 2
    assert overland("doctor", "trian.steps=1").returncode == 2
    done = overland("doctor", "launcher.kind=slurm")
    assert (done.returncode, "launcher.slurm.url is missing" in done.stderr) == (2, True)


def test_slurm_settings_without_its_launcher_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    _, found = doctor("--config", config, "launcher.slurm.partition=main")
    assert found["Slurm"]["status"] == "warning"
    assert "give launcher.kind=slurm too" in found["Slurm"]["sentence"]
