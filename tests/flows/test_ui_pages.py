"""Which MLflow `overland ui` shows."""

from __future__ import annotations

import os
from pathlib import Path

from flows.ui import newest_tracking_uri


def write_config(runs: Path, name: str, text: str, time: float) -> None:
    path = runs / name / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    os.utime(path, (time, time))


def test_without_runs_it_is_the_default_database(tmp_path: Path) -> None:
    assert newest_tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"


def test_the_newest_run_that_can_be_read_says_where(tmp_path: Path) -> None:
    write_config(tmp_path, "a", "tracking: {uri: 'http://old:5000'}", 1.0)
    write_config(tmp_path, "b", "tracking: {uri: 'http://new:5000'}", 2.0)
    write_config(tmp_path, "c", "no_such_key: 1", 3.0)
    assert newest_tracking_uri(tmp_path) == "http://new:5000"
