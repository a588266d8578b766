"""`overland simulate evaluation`: one JSON object for programs, a table for people, rc 2 for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["simulate", "evaluation", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "work.csv"
    path.write_text("task,requests,infer_s,metric_s\none,1000,900,600\ntwo,100,300,0\n")
    return path


def test_json_has_the_figures(workload: Path) -> None:
    found = json.loads(run("--nodes", "2", "--workload", str(workload), "--json"))
    assert found["nodes"] == 2
    for name in ("per_task", "opencompass_size", "opencompass_num_worker"):
        assert found["lower_bound_s"] <= found["ours_s"] <= found[f"{name}_s"]
        assert found["speedup"][name] == pytest.approx(found[f"{name}_s"] / found["ours_s"])


def test_people_get_a_table(workload: Path) -> None:
    text = run("--nodes", "1", "--workload", str(workload))
    for words in ("lower bound", "ours", "a trial each", "OpenCompass size", "8 GPUs"):
        assert words in text


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("task,requests\na,1\n")
    command = [sys.executable, "-m", "flows.cli", "simulate", "evaluation", "--nodes", "1"]
    done = subprocess.run(
        [*command, "--workload", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no column infer_s" in done.stderr
