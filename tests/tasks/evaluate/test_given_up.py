"""Shards that cannot be answered: tried twice, given up with their target, tried again by the next command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluation_setup import REPOSITORY
from test_evaluation_replanning import a_plan

from configs.rundir import EvaluationDir
from tasks.evaluate.given_up import give_up, note_failure, try_again, why_given_up
from tasks.evaluate.plan import EvaluationPlan
from tasks.evaluate.responses import Pending, is_done, shards_answered, shards_done, write_shard
from tasks.evaluate.responses import shard_path as responses_of

PLAN = a_plan({"bad": (3, 1.0, 0.0), "good": (2, 1.0, 0.0)})
BAD, GOOD = PLAN.tasks
WHY = "evaluation task 'bad' cannot be answered: ValueError: top_k"


@pytest.fixture
def evaluation(tmp_path: Path) -> EvaluationDir:
    found = EvaluationDir(tmp_path, step=0)
    found.responses_dir.mkdir()
    write_shard(responses_of(found, BAD.shards[0].name), [])
    return found


def fail(evaluation: EvaluationDir, plan: EvaluationPlan = PLAN) -> bool:
    return note_failure(evaluation, plan, BAD, BAD.shards[1], "ValueError: top_k")


def test_the_first_failure_gives_nothing_up(evaluation: EvaluationDir) -> None:
    assert not fail(evaluation)
    assert not is_done(evaluation, BAD.shards[1])
    assert why_given_up(evaluation, BAD.shards) is None


def test_the_second_gives_up_what_is_left_of_the_target_alone(evaluation: EvaluationDir) -> None:
    fail(evaluation)
    assert fail(evaluation)
    assert why_given_up(evaluation, BAD.shards) == WHY
    assert why_given_up(evaluation, GOOD.shards) is None
    assert shards_done(evaluation) == {shard.name for shard in BAD.shards}
    assert shards_answered(evaluation) == {BAD.shards[0].name}
    assert not Pending(evaluation, BAD.shards) and Pending(evaluation, GOOD.shards).count() == 2


def test_another_shard_of_a_group_takes_the_group_with_it(evaluation: EvaluationDir) -> None:
    tasks = [task.model_copy(update={"target": "group"}) for task in PLAN.tasks]
    group = PLAN.model_copy(update={"tasks": tasks, "targets": ["group"]})
    give_up(evaluation, group, tasks[0], "ValueError: top_k")
    assert why_given_up(evaluation, GOOD.shards) == WHY


def test_the_next_command_tries_again(evaluation: EvaluationDir) -> None:
    fail(evaluation)
    fail(evaluation)
    try_again(evaluation)
    assert shards_done(evaluation) == {BAD.shards[0].name}
    assert not fail(evaluation)


def test_responses_count_more_than_an_earlier_failure(evaluation: EvaluationDir) -> None:
    give_up(evaluation, PLAN, BAD, "it was away")
    for shard in BAD.shards:
        write_shard(responses_of(evaluation, shard.name), [])
    assert why_given_up(evaluation, BAD.shards) is None


TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: documents.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: text
doc_to_target: text
generation_kwargs: {{until: ["\\n"], max_gen_toks: 2, do_sample: true, temperature: 0.7, top_k: {top_k}}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.mark.slow
def test_a_task_that_the_model_cannot_answer_costs_its_own_scores(
    tiny_model: Path, tmp_path: Path
) -> None:
    for name, top_k in (("bad", -5), ("good", 5)):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, top_k=top_k))
    (tmp_path / "documents.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    out = tmp_path / "out"  # among the tasks, which it must not change
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "evaluate",
        str(tiny_model),
        "--tasks",
        "bad,good",
    ]
    options = ["--task-dir", str(tmp_path), "--out", str(out), "--workers", "1", "--json"]
    done = subprocess.run(
        [*command, *options], cwd=REPOSITORY, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 1, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert {row["task"] for row in said["scores"]} == {"good"}
    assert "`top_k` has to be a strictly positive integer" in said["failed"]["bad"]
