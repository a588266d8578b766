"""`overland evaluate MODEL`: any model's folder, evaluated, resumed, scored anew, or refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluation_setup import REPOSITORY, as_scores, lm_eval_results, write_heldout, write_user_tasks

CODE_TASK = """
task: code
unsafe_code: true
dataset_path: json
dataset_kwargs: {data_files: {test: copy.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: context
doc_to_target: target
generation_kwargs: {until: ["\\n"], max_gen_toks: 6}
process_results: !function runner.run
metric_list: [{metric: confined, aggregation: mean, higher_is_better: true}]
"""
RUNNER_MODULE = """
def run(doc, results):
    try:
        open(__file__, "a").close()
    except OSError:
        return {"confined": 1.0}
    return {"confined": 0.0}
"""
TWO_METRICS = """
include: shots.yaml
task: shots
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: brier_score, aggregation: brier_score, higher_is_better: false}
"""
PLAIN_GROUP = "group: suite\ntask: [shots, function]\n"
TARGETS = ("suite", "repeats")


@pytest.fixture(scope="module")
def task_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_heldout(folder, count=6)
    write_user_tasks(folder)
    (folder / "suite.yaml").write_text(PLAIN_GROUP)
    (folder / "code.yaml").write_text(CODE_TASK)
    (folder / "runner.py").write_text(RUNNER_MODULE)
    (folder / "odd.yaml").write_text(
        "include: shots.yaml\ntask: odd\nmetric_list: [{metric: brier_scor}]\n"
    )
    return folder


def evaluate(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "flows.cli", "evaluate", *map(str, arguments)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=500)
    assert done.returncode == code, done.stderr
    return done


def scores_of(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], tuple[Any, ...]]:
    rows = json.loads(done.stdout.splitlines()[-1])["scores"]
    return {(r["task"], r["metric"]): (r["value"], r["stderr"], r["samples"]) for r in rows}


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("responses/*.jsonl")}


@pytest.mark.slow
def test_any_model_is_evaluated_resumed_and_scored_anew(
    task_dir: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers give lm-eval's own scores, bit for bit."""
    out = tmp_path / "out"
    names = ",".join([*TARGETS, "code"])
    options = ["--task-dir", task_dir, "--out", out, "--bootstrap", "200", "--json"]
    asked = [tiny_model, "--tasks", names, *options]
    first = scores_of(evaluate(*asked, "--workers", "3"))
    assert first.pop(("code", "confined,none")) == (1.0, 0.0, 6)
    expected = lm_eval_results(tiny_model, task_dir, monkeypatch, TARGETS, limit=None)
    assert first == as_scores(expected)
    before = stamps(out)
    assert len(before) > 4  # the tasks were cut

    one_shard = min(out.glob("responses/shots*.jsonl"))
    answers = one_shard.read_text()
    one_shard.unlink()
    (out / "scores.json").unlink()
    resumed = scores_of(evaluate(out, "--resume", "--json"))
    assert one_shard.read_text() == answers
    assert resumed.items() >= first.items()
    after = stamps(out)
    assert {name for name in before if before[name] != after[name]} == {one_shard.name}

    (task_dir / "shots_base.yaml").write_text((task_dir / "shots.yaml").read_text())
    changed = TWO_METRICS.replace("include: shots.yaml", "include: shots_base.yaml")
    (task_dir / "shots.yaml").write_text(changed)
    (task_dir / "shots_base.yaml").write_text(
        (task_dir / "shots_base.yaml").read_text().replace("task: shots\n", "")
    )
    anew = scores_of(evaluate(out, "--rescore", "--json"))
    assert ("shots", "brier_score,none") in anew
    assert ("shots", "mcc,none") not in anew
    assert anew["shots", "acc,none"] == first["shots", "acc,none"]
    assert stamps(out) == after

    (task_dir / "shots.yaml").write_text(changed + 'doc_to_text: "{{context}}?"\n')
    refused = evaluate(out, "--rescore", code=2)
    assert "'shots' asks what no stored response answers" in refused.stderr
    assert stamps(out) == after


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tasks", "shotz"], "did you mean shots"),
        (["--tasks", "hellaswag"], "is one of lm-eval's own"),
        (["--tasks", "heldout_cloze"], "text that a run has held out"),
        (["--tasks", "odd"], "metric 'brier_scor' is not installed: lm-eval has none"),
        (["--tasks", "shots", "--backend", "vllm"], "needs the package vllm"),
        (["--tasks", "shots", "--workers", "0"], "--workers"),
        (["--tasks", "shots", "--step", "4"], "--step is for a run"),
        ([], "--tasks a,b,c"),
        (["--resume"], "is no evaluation"),
        (
            ["--resume", "--workers", "8", "--bootstrap", "0"],
            "--bootstrap, --workers would have no",
        ),
        (["--rescore", "--limit", "10"], "--limit would have no effect"),
        (["--rescore", "--resume"], "give --resume or --rescore: the first asks the model"),
        (["--tasks", "shots", "--gpus", "0"], "--gpus 0 is the number of a GPU, and there is none"),
        (["--rescore", "--launcher", "site.yaml"], "--launcher would have no effect"),
    ],
)
def test_wrong_input_is_refused_at_once(
    task_dir: Path, tiny_model: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    dirs = ["--task-dir", str(task_dir)] if "--tasks" in arguments else []
    out = tmp_path / "out"
    done = evaluate(tiny_model, *arguments, *dirs, "--out", out, code=2)
    assert words in done.stderr
    assert not out.exists()


def test_a_runs_evaluation_refuses_what_its_config_says(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: x\n")
    given = ["--num-fewshot", "5", "--limit", "10", "--batch-size", "8", "--step", "4"]
    done = evaluate(tmp_path, *given, code=2)
    assert "--batch-size, --limit, --num-fewshot would have no effect here" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_incomplete_model_is_refused_at_once(
    task_dir: Path, tiny_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "model.safetensors").unlink()
    done = evaluate(
        model, "--tasks", "shots", "--task-dir", task_dir, "--out", tmp_path / "out", code=2
    )
    assert "is incomplete" in done.stderr
