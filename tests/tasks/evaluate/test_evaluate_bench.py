"""The evaluation benchmark: its tasks, its storage, and one small run of everything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from evaluation_setup import REPOSITORY

from tasks.evaluate import bench_evaluate_storage
from tasks.evaluate.bench_evaluate_metrics import run_program
from tasks.evaluate.bench_evaluate_storage import Storage
from tasks.evaluate.bench_evaluate_suite import known_metric_s, write_suite
from tasks.evaluate.catalog import build_catalog
from tasks.evaluate.task_checks import checked_entries


def test_the_tasks_are_the_same_each_time_and_can_run(tmp_path: Path) -> None:
    names = write_suite(tmp_path / "first")
    write_suite(tmp_path / "second")
    assert len(names) >= 12
    for path in sorted((tmp_path / "first").iterdir()):
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()
    entries = checked_entries(build_catalog([tmp_path / "first"]), names)
    assert sum(bool(entry.values.get("unsafe_code")) for entry in entries) == 2
    assert len({entry.values["output_type"] for entry in entries}) == 4


def test_scale_changes_documents_and_what_the_judge_takes(tmp_path: Path) -> None:
    write_suite(tmp_path / "suite", scale=0.5)
    documents = (tmp_path / "suite" / "explaining_to_a_judge.jsonl").read_text().splitlines()
    assert len(documents) == 6
    assert (
        known_metric_s(0.5)["explaining_to_a_judge"]
        == known_metric_s(1.0)["explaining_to_a_judge"] / 2
    )


def test_programs_are_run_with_each_test() -> None:
    document = {
        "context": "def add_2(x):\n",
        "tests": ["assert add_2(1) == 3", "assert add_2(2) == 5"],
    }
    assert run_program(document, ["    return x + 2\n"]) == {"passed": 0.5}
    assert run_program(document, ["    return x +\n"]) == {"passed": 0.0}
    assert run_program(document, ["    return '\0'\n"]) == {"passed": 0.0}


class _StoppedClock:
    """Stands at 0, so that all who read do so at the same time; keeps how long they were to sleep."""

    def __init__(self) -> None:
        self.sleeps_s: list[float] = []

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.sleeps_s.append(seconds)


def test_readers_of_the_storage_share_its_bandwidth(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that read at the same time take as long as the link needs for both."""
    clock = _StoppedClock()
    monkeypatch.setattr(bench_evaluate_storage, "time", clock)
    size_bytes = Storage(tiny_model, 1.0).size_bytes
    storage = Storage(tiny_model, bytes_per_s=size_bytes / 0.2)
    storage.read()
    assert clock.sleeps_s[-1] == pytest.approx(0.2)
    storage.read()
    assert clock.sleeps_s[-1] == pytest.approx(0.4)


@pytest.mark.soak
def test_all_ways_score_the_same(tiny_model: Path, tmp_path: Path) -> None:
    """A tenth of the documents; the benchmark itself refuses scores that differ in any bit."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    argv = ["--model", str(model), "--scale", "0.1", "--simulate", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "bench", "evaluate", *argv],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["same_scores"]
    names = {"ours", "per_task", "opencompass_size", "opencompass_num_worker"}
    assert all(figures[f"{name}_s"] >= figures["lower_bound_least_s"] for name in names)
    assert figures["lower_bound_least_s"] <= figures["lower_bound_s"]
    assert [round_s.keys() for round_s in figures["rounds_s"]] == [names]
    assert figures["simulation_error"].keys() == names
