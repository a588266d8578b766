"""A new plan takes the place of the one before only when it is whole; nothing finished is lost."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from evaluation_setup import STEP

from configs.errors import OverlandError
from configs.rundir import EvaluationDir, RunDir
from configs.schema import EvaluateConfig
from tasks.evaluate.plan import EvaluationPlan, read_plan
from tasks.evaluate.plan_swap import Draft, plan_before, swap_in
from tasks.evaluate.planning import make_plan
from tasks.evaluate.responses import shard_path

FAULTY = """
task: faulty
dataset_path: json
dataset_kwargs: {data_files: {test: cloze.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: context
doc_to_target: "{{ 1 / 0 }}"
metric_list: [{metric: acc}]
"""


class Killed(BaseException):
    """As by signal 9, where nothing is cleaned."""


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def answered(run: RunDir, name: str, *tasks: str) -> tuple[EvaluationDir, EvaluationPlan]:
    """A plan with a response for each shard, and scores. What is in them does not matter here."""
    evaluation = EvaluationDir(run.path / name, STEP)
    plan = make_plan(EvaluateConfig(tasks=list(tasks)), evaluation, run.heldout_dir)
    for _, shard in plan.shards():
        path = shard_path(evaluation, shard.name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(shard.name)
    evaluation.target_scores_dir.mkdir()
    (evaluation.target_scores_dir / "000_a.json").write_text("scores of one")
    evaluation.scores_path.write_text("scores of all")
    return evaluation, plan


def test_a_plan_that_cannot_be_made_changes_nothing(run: RunDir) -> None:
    evaluation, _ = answered(run, "one", "heldout_cloze")
    (run.heldout_dir / "faulty.yaml").write_text(FAULTY)
    config = EvaluateConfig(tasks=["heldout_cloze", "faulty"], task_dirs=[run.heldout_dir])
    before = tree(evaluation.path)
    with pytest.raises(OverlandError, match="division by zero"):
        make_plan(config, evaluation, run.heldout_dir)
    after = tree(evaluation.path)
    assert {k: v for k, v in after.items() if not k.startswith("datasets_cache")} == {
        k: v for k, v in before.items() if not k.startswith("datasets_cache")
    }


def test_a_kill_at_any_moment_of_the_swap_loses_nothing(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rename and each removal is the last thing that is done once, then another plan follows."""
    one, first = answered(run, "one", "heldout_cloze", "heldout_copy")
    two, second = answered(run, "two", "heldout_cloze", "heldout_perplexity")
    responses = {path.name: path.read_text() for path in one.responses_dir.iterdir()}
    for count in itertools.count():
        folder = run.path / "tries" / str(count)
        tried = EvaluationDir(folder / "evaluation", STEP)
        draft = EvaluationDir(folder / "draft", STEP)
        shutil.copytree(one.path, tried.path)
        shutil.copytree(two.path, draft.path)
        with monkeypatch.context() as patch:
            done = kill_after(patch, count)
            with suppress(Killed):
                swap_in(tried, Draft(draft, second, None))
        assert plan_before(tried) in (first, second)
        assert tried.scores_path.read_text() == "scores of all"
        kept = {path.name: path.read_text() for path in tried.responses_dir.rglob("*.jsonl")}
        assert kept == responses
        again = make_plan(
            EvaluateConfig(tasks=["heldout_cloze", "heldout_copy"]), tried, run.heldout_dir
        )
        assert again == first.model_copy(update={"order": [], "tasks": again.tasks})
        assert {s.name for _, s in again.shards()} == {s.name for _, s in first.shards()}
        if done() <= count:  # it was not killed any more
            break
    assert count > 8
    assert read_plan(tried).order == []


def kill_after(patch: pytest.MonkeyPatch, count: int) -> Callable[[], int]:
    """Let `count` renames and removals happen; returns how many were begun."""
    calls = 0

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > count:
                raise Killed
            return function(*arguments, **options)

        return call

    patch.setattr(os, "replace", wrap(os.replace))
    patch.setattr(shutil, "rmtree", wrap(shutil.rmtree))
    return lambda: calls
