"""The example of docs/evaluation.md, as it is written there; and what a mistake in it later costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from evaluation_setup import REPOSITORY

_FILE = re.compile(r"`my_tasks/([\w.]+)`[^\n]*\n\n```\w+\n(.*?)```", re.DOTALL)


def overland(folder: Path, *arguments: str, code: int) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "flows.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.slow
def test_the_documented_example_works_and_its_scores_outlive_a_mistake(
    tmp_path: Path, tiny_model: Path
) -> None:
    text = (REPOSITORY / "docs" / "evaluation.md").read_text()
    files = dict(_FILE.findall(text))
    assert sorted(files) == ["capitals.jsonl", "capitals.yaml"]
    (tmp_path / "my_tasks").mkdir()
    for name, content in files.items():
        (tmp_path / "my_tasks" / name).write_text(content)
    model = tmp_path / "SmolLM2-135M"  # another one, as small as a test's
    model.symlink_to(tiny_model)
    (command,) = re.findall(r"Then `overland (evaluate [^`]+)` says", text)
    done = overland(tmp_path, *command.split(), code=0)
    assert done.stderr.splitlines()[-1].endswith("shards answered, 1 of 1 tasks scored")
    said = re.search(r"` says\n\n```\n(.*?)```", text, re.DOTALL)
    assert said is not None
    assert words(done.stdout) == words(said[1].partition("\n")[2])

    kept = tmp_path / "evaluations" / "SmolLM2-135M"
    before = (kept / "scores.json").read_bytes()
    file = tmp_path / "my_tasks" / "capitals.jsonl"
    file.write_text(file.read_text().replace('"Milan"', "Milan"))
    for option in ("--resume", "--rescore"):
        refused = overland(tmp_path, "evaluate", str(kept), option, code=2)
        assert f"data file {file}, line 2 is no JSON" in refused.stderr
        assert (kept / "scores.json").read_bytes() == before


def words(table: str) -> list[str]:
    """What it says, but the numbers and the folder's own path."""
    text = re.sub(r"\d+\.\d+", "N", table)
    return re.sub(r"kept in .*/evaluations", "kept in evaluations", text).split()
