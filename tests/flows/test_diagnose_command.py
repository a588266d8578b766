"""`overland diagnose` as a person and a script use it: real processes, files, directories, pipes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KEYS = [
    "file",
    "class",
    "category",
    "root_cause_line",
    "root_cause_text",
    "faulty_rank",
    "faulty_node",
    "action",
    "confidence",
    "method",
    "evidence",
    "mitigation",
    "lines",
    "kept_lines",
]
LOG = (
    "step 1 loss: 2.0\nTraceback (most recent call last):\n  File 'a.py', line 3, in f\n"
    "KeyError: 'lr'\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERLAND_CASES", str(tmp_path / "store"))
    logs = tmp_path / "logs"
    logs.mkdir()
    return logs


def _run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", "diagnose", *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, env=os.environ
    )


def _found(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_one_json_object_for_each_input_with_exactly_the_promised_keys(folder: Path) -> None:
    (folder / "a.log").write_text(LOG)
    (folder / "b.log").write_text("job 3 finished, exit code 0\n")
    ended = _run("--json", str(folder / "a.log"), str(folder / "b.log"))
    assert ended.returncode == 0, ended.stderr
    first, second = _found(ended)
    assert list(first) == KEYS
    assert (first["class"], first["root_cause_line"], first["lines"]) == ("KeyError", 4, 4)
    assert 1 <= first["kept_lines"] <= 4
    assert (second["class"], second["root_cause_line"]) == ("NoFailure", None)


def test_a_directory_of_ranks_is_one_job_and_one_of_unrelated_logs_is_many(folder: Path) -> None:
    for rank in range(3):
        (folder / f"rank_{rank}.log").write_text(LOG if rank == 1 else "step 1 loss: 2.0\n")
    (job,) = _found(_run("--json", str(folder)))
    assert (job["class"], job["faulty_rank"]) == ("KeyError", 1)
    assert job["file"] == str(folder / "rank_1.log")
    for rank in range(3):
        (folder / f"rank_{rank}.log").rename(folder / f"log-{rank}.log")
    assert len(_found(_run("--json", str(folder)))) == 3


def test_standard_input_is_read_and_the_report_quotes_the_line(folder: Path) -> None:
    ended = _run("-", text=LOG)
    assert ended.returncode == 0, ended.stderr
    assert "KeyError: 'lr'" in ended.stdout and "line 4" in ended.stdout
    assert "fix_by_user" in ended.stdout


def test_what_cannot_be_read_is_named_and_the_rest_is_answered(folder: Path) -> None:
    (folder / "a.log").write_text(LOG)
    empty = folder / "empty"
    empty.mkdir()
    packed = bytearray(gzip.compress(LOG.encode()))
    packed[len(packed) // 2 :] = b"\xff" * 64
    (folder / "damaged.gz").write_bytes(packed)
    wrong = [str(folder / "damaged.gz"), str(folder / "gone.log"), str(empty), "~no-such-user/log"]
    ended = _run("--json", *wrong, str(folder / "a.log"))
    assert ended.returncode == 2
    assert [found["class"] for found in _found(ended)] == ["KeyError"]
    assert "damaged.gz: the compressed log is damaged" in ended.stderr
    assert "gone.log does not exist" in ended.stderr and "empty holds no log" in ended.stderr
    assert "~no-such-user/log does not exist" in ended.stderr
    assert _run().returncode == 2


def test_a_diagnosis_can_be_corrected_by_its_id(folder: Path, tmp_path: Path) -> None:
    (folder / "a.log").write_text(LOG)
    report = _run(str(folder / "a.log")).stdout
    case_id = report.split("id ")[-1].split()[0]
    assert _run("--confirm", case_id, "ArgumentError").returncode == 0
    (line,) = (tmp_path / "store" / "confirmed.jsonl").read_text().splitlines()
    assert json.loads(line)["class"] == "ArgumentError"
    wrong = _run("--confirm", case_id, "NoSuchClass")
    assert wrong.returncode == 2 and "no failure class" in wrong.stderr
    assert _run("--confirm", "unheard-of", "KeyError").returncode == 2
