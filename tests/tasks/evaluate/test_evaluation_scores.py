"""Scores of recorded responses: equal to lm-eval's own, without torch, and of these responses only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evaluation_setup import (
    ALL_KINDS,
    REPOSITORY,
    STEP,
    as_scores,
    lm_eval_results,
    stage_command,
)

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir, RunDir
from tasks.evaluate import versions
from tasks.evaluate.plan import config_of, current_plan, read_plan
from tasks.evaluate.score import score

# As if torch and transformers were not installed.
WITHOUT_TORCH = """
import runpy, sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        blocked = name.split(".")[0] in {"torch", "transformers", "accelerate"}
        return None if blocked else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
try:
    import torch
except ModuleNotFoundError:
    runpy.run_module("tasks.evaluate.score", run_name="__main__", alter_sys=True)
"""

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]


def test_scores_equal_simple_evaluate_and_need_no_torch(
    inferred: EvaluationDir,
    all_kinds_run: RunDir,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = inferred.path.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(run_dir), str(STEP)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    scores = inferred.scores()
    assert scores is not None
    ours = {(row.task, row.metric): (row.value, row.stderr, row.samples) for row in scores.scores}
    expected = as_scores(
        lm_eval_results(tiny_model, all_kinds_run.heldout_dir, monkeypatch, ALL_KINDS, limit=4)
    )
    assert ours == expected
    assert {"suite", "shots", "heldout_continuation"} <= {task for task, _ in ours}
    assert ("repeats", "exact_match,vote") in ours
    better = {(row.task, row.metric): row.higher_is_better for row in scores.scores}
    assert better["heldout_continuation", "acc_norm,none"] is True
    assert better["heldout_perplexity", "word_perplexity,none"] is False
    assert scores.tasks == [*ALL_KINDS[:-1], "shots", "heldout_continuation"]
    assert 0 < scores.started_at < scores.ended_at
    assert scores.infer_s > 0


@pytest.mark.parametrize("change", ["touched", "gone"])
def test_scoring_anew_needs_no_model_and_says_whose_answers_they_are(
    inferred: EvaluationDir, all_kinds_run: RunDir, change: str
) -> None:
    """And a later evaluation of another model does not take them for its own."""
    before = read_plan(inferred)
    if change == "gone":
        shutil.rmtree(inferred.model_dir)
    else:
        os.utime(inferred.model_dir / "model.safetensors", (1.0, 1.0))
        (inferred.model_dir / "config.json").write_text("{}")
    run = RunDir(inferred.path.parent.parent)
    shutil.copytree(all_kinds_run.heldout_dir, run.heldout_dir)
    argv = [*stage_command("score", run), "--anew"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    plan = read_plan(inferred)
    scores = inferred.scores()
    assert scores is not None and scores.plan_sha256 == plan.sha256()
    assert (plan.model_sha256, plan.answering) == (before.model_sha256, before.answering)
    assert current_plan(config_of(inferred), inferred) is None
    config = config_of(inferred).model_copy(update={"batch_size": 4})
    inferred.config_path.write_text(config.model_dump_json())
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=500)
    assert "otherwise than when it answered" in done.stderr
    assert read_plan(inferred) == plan


def test_answers_of_other_versions_are_neither_mixed_nor_lost(
    inferred: EvaluationDir,
    all_kinds_run: RunDir,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A patch release of transformers is another model, as far as answers go."""
    from tasks.evaluate.planning import make_plan

    config, before, heldout_dir = (
        config_of(inferred),
        read_plan(inferred),
        all_kinds_run.heldout_dir,
    )
    answers = {path.name for path in inferred.responses_dir.glob("*.jsonl")}
    installed = versions.versions_of("hf")
    assert before.answering.versions == installed and all(installed.values())
    assert current_plan(config, inferred) == before
    newer = {**installed, "transformers": installed["transformers"] + ".1"}
    with monkeypatch.context() as patch:
        patch.setattr(versions, "versions_of", lambda backend: newer)
        assert current_plan(config, inferred) is None
        plan = make_plan(config, inferred, heldout_dir)
        assert set(plan.order) == {shard.name for _, shard in plan.shards()}
        assert not set(plan.order) & {shard.name for _, shard in before.shards()}
        assert not [*inferred.responses_dir.glob("*.jsonl")]
        said = f"transformers {installed['transformers']} -> {newer['transformers']}"
        assert said in capfd.readouterr().err
    with pytest.raises(EvaluationError, match="other packages than the plan was made for"):
        versions.check_versions(plan.answering.versions, "hf")
    assert make_plan(config, inferred, heldout_dir).order == []
    assert {path.name for path in inferred.responses_dir.glob("*.jsonl")} == answers


def change_rows(evaluation: EvaluationDir, task: str, change: Callable[[Rows], object]) -> None:
    """Rewrite the responses of a task's first shard."""
    plan = next(shard for planned, shard in read_plan(evaluation).shards() if planned.task == task)
    path = evaluation.responses_dir / f"{plan.name}.jsonl"
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.pop(), "has 3 responses, its shard 4"),
        (lambda rows: rows[1].update(prompt_sha256="0" * 64), "recorded for another prompt"),
        (lambda rows: rows[1].update(response="text"), "is no float"),
        pytest.param(lambda rows: rows.append(rows[0]), "is there twice", marks=pytest.mark.soak),
        (
            lambda rows: rows.append(rows[0] | {"key": ["heldout_cloze", *rows[0]["key"][1:]]}),
            "is not of task 'heldout_perplexity'",
        ),
        pytest.param(
            lambda rows: rows.append(
                rows[0] | {"key": ["heldout_perplexity", 99, *rows[0]["key"][2:]]}
            ),
            "has 5 responses, its shard 4",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            lambda rows: rows[0].pop("key"), "line 1 is no response", marks=pytest.mark.soak
        ),
        (
            lambda rows: rows[0].update(key=["heldout_perplexity", 99, *rows[0]["key"][2:]]),
            r"no response was recorded for \['heldout_perplexity', 0,",
        ),
    ],
    ids=[
        "missing",
        "other-prompt",
        "other-type",
        "twice",
        "other-task",
        "extra",
        "malformed",
        "swapped",
    ],
)
def test_wrong_responses_are_refused(
    inferred: EvaluationDir, change: Callable[[Rows], object], message: str
) -> None:
    change_rows(inferred, "heldout_perplexity", change)
    with pytest.raises(EvaluationError, match=message):
        score(inferred)
    assert not inferred.scores_path.exists()


def test_missing_shard_is_refused(inferred: EvaluationDir) -> None:
    next(iter(sorted(inferred.responses_dir.iterdir()))).unlink()
    with pytest.raises(EvaluationError, match="inference has not finished"):
        score(inferred)


def test_foreign_file_is_refused(inferred: EvaluationDir) -> None:
    (inferred.responses_dir / "999_other.jsonl").write_text("")
    with pytest.raises(EvaluationError, match=r"999_other\.jsonl belongs to no shard"):
        score(inferred)


def test_scores_are_of_the_documents_that_were_asked_about(
    inferred: EvaluationDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set may be another one by now; the documents that were kept may not."""
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    (yaml_path,) = inferred.tasks_dir.glob("000_*.yaml")
    other = inferred.path / "other.jsonl"
    other.write_text('{"text": "something else"}\n' * 6)
    old = next(line for line in yaml_path.read_text().splitlines() if "perplexity.jsonl" in line)
    yaml_path.write_text(yaml_path.read_text().replace(old, f"    test: {other}"))
    assert score(inferred).scores
    for path in (inferred.scores_path, *inferred.target_scores_dir.iterdir()):
        path.unlink()
    (documents,) = inferred.documents_dir.glob("000_*.jsonl")
    documents.write_text(other.read_text())
    with pytest.raises(EvaluationError, match="recorded for another prompt"):
        score(inferred)


def test_hostile_output_is_only_data(
    inferred: EvaluationDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the model wrote is compared with the target and goes nowhere else."""
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    hostile = (
        '{{ "".__class__.__mro__ }}\n{"key": ["heldout_copy", 0, "generate_until", 0, 0]}\u2028'
        "\x00\x1b[2J[bold]![x](http://x)$(reboot)`id`; DROP TABLE runs; --\r\n__import__('os')"
    )

    def answer(rows: Rows) -> None:
        for row in rows[1:]:
            row["response"] = hostile
        rows[0]["response"] = " river\n" + hostile

    change_rows(inferred, "heldout_copy", answer)
    scores = {(row.task, row.metric): row.value for row in score(inferred).scores}
    assert scores["heldout_copy", "exact_match,first_word"] == 0.25
