"""Documents, task files and commands that the tests of the evaluate stage share."""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from configs.records import ExportRecord
from configs.rundir import EvaluationDir, RunDir, write_record
from configs.schema import EvaluateConfig
from tasks.evaluate.catalog import OWN_TASKS_DIR

REPOSITORY = Path(__file__).parents[3]
STEP = 200
TEXT = (
    "river stone the old bridge of a city was built by people who came over the hills and "
    "made paper, glass and ships; in 1643 its library held nine thousand books."
)
WORDS = TEXT.split()


def write_lines(path: Path, documents: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


def passage(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def write_heldout(folder: Path, count: int) -> None:
    """Documents of the four held-out tasks."""
    rng = random.Random(7)
    texts = [passage(rng, 30) for _ in range(count)]
    write_lines(folder / "perplexity.jsonl", ({"text": text} for text in texts))
    cloze = ({"context": passage(rng, 12), "target": f" {rng.choice(WORDS)}"} for _ in texts)
    write_lines(folder / "cloze.jsonl", cloze)
    continuation = (
        {
            "context": passage(rng, 10),
            "choices": [f" {passage(rng, 3 + i)}" for i in range(3)],
            "answer": rng.randrange(3),
        }
        for _ in texts
    )
    write_lines(folder / "continuation.jsonl", continuation)
    copy = ({"context": f"{(p := passage(rng, 6))} {p[:20]}", "target": "river"} for _ in texts)
    write_lines(folder / "copy.jsonl", copy)


SHOTS_TASK = """
task: shots
tag: everything
dataset_path: json
dataset_kwargs: {data_files: {test: shots.jsonl, train: [shots_train.jsonl]}}
test_split: test
fewshot_split: train
num_fewshot: 3
output_type: multiple_choice
description: "Choose.\\n"
doc_to_text: "Q: {{context}}\\nA:"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
  - {metric: mcc, aggregation: matthews_corrcoef, higher_is_better: true}
"""
REPEATS_TASK = """
task: repeats
dataset_path: json
dataset_kwargs: {data_files: {test: copy.jsonl}}
test_split: test
output_type: generate_until
repeats: 3
doc_to_text: context
doc_to_target: target
generation_kwargs: {until: ["\\n"], max_gen_toks: 6, do_sample: true, temperature: 1.0}
filter_list:
  - {name: first, filter: [{function: take_first}]}
  - name: vote
    filter:
      - {function: regex, regex_pattern: '([a-z])', fallback: ""}
      - {function: majority_vote}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""
FUNCTION_TASK = """
include: shots.yaml
task: function
num_fewshot: 0
doc_to_text: !function helper.make_text
process_results: !function helper.count_greedy
metric_list:
  - {metric: greedy, aggregation: mean, higher_is_better: true}
"""
HELPER_MODULE = """
def make_text(doc):
    return f"<{doc['context']}>"


def count_greedy(doc, results):
    return {"greedy": sum(is_greedy for _, is_greedy in results) - doc["answer"]}
"""
SUITE_GROUP = """
group: suite
task:
  - shots
  - {task: heldout_continuation, num_fewshot: 0}
aggregate_metric_list:
  - {metric: acc, weight_by_size: true}
  - {metric: acc_norm, weight_by_size: false}
"""


def write_user_tasks(folder: Path) -> None:
    """A user's tasks: few-shot, repeats with filters, functions, a group and a tag."""
    rng = random.Random(11)
    for name, count in {"shots": 5, "shots_train": 9}.items():
        documents = (
            {
                "context": passage(rng, 4),
                "choices": [passage(rng, 2) for _ in range(3)],
                "answer": rng.randrange(3),
            }
            for _ in range(count)
        )
        write_lines(folder / f"{name}.jsonl", documents)
    files = {
        "shots.yaml": SHOTS_TASK,
        "repeats.yaml": REPEATS_TASK,
        "function.yaml": FUNCTION_TASK,
        "suite.yaml": SUITE_GROUP,
        "helper.py": HELPER_MODULE,
    }
    for name, text in files.items():
        (folder / name).write_text(text)


# All output types, few-shot prompts, repeats with filters, functions, and a group.
ALL_KINDS = (
    "heldout_perplexity",
    "heldout_cloze",
    "heldout_copy",
    "repeats",
    "function",
    "suite",
)


def prepare_evaluation(run: RunDir, model_dir: Path, **config: Any) -> EvaluationDir:
    """The evaluation folder as the flow leaves it before inference: model and config."""
    evaluation = run.evaluation(STEP)
    shutil.copytree(model_dir, evaluation.model_dir, dirs_exist_ok=True)
    export = ExportRecord(checkpoint="the exported one", started_at=1.0, ended_at=2.0)
    write_record(evaluation.export_path, export)
    evaluation.config_path.write_text(EvaluateConfig(**config).model_dump_json())
    return evaluation


def stage_command(name: str, run: RunDir) -> list[str]:
    """`python -m tasks.evaluate.NAME RUN_DIR STEP`."""
    return [sys.executable, "-m", f"tasks.evaluate.{name}", str(run.path), str(STEP)]


def lm_eval_results(
    model_dir: Path,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: Iterable[str],
    limit: int | None,
) -> dict[str, dict[str, Any]]:
    """What `simple_evaluate` says with the model itself, task by task, on the original YAML files."""
    import lm_eval.evaluator
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.chdir(data_dir)  # Where relative data files are.
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    # Describing the machine takes seconds and changes no score.
    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda storage: None)
    model = HFLM(pretrained=str(model_dir), device="cpu", dtype="float32", batch_size=1)
    folders = [OWN_TASKS_DIR, data_dir]
    manager = TaskManager(include_path=[str(f) for f in folders], include_defaults=False)
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        answer = lm_eval.evaluator.simple_evaluate(
            model=model, tasks=[name], task_manager=manager, limit=limit, bootstrap_iters=200
        )
        results |= answer["results"]
    return results


def as_scores(results: dict[str, dict[str, Any]]) -> dict[tuple[str, str], tuple[Any, ...]]:
    """(task, metric) -> value, standard error, samples, out of lm-eval's results."""
    scores = {}
    for task, metrics in results.items():
        for key, value in metrics.items():
            metric, comma, filter_name = key.partition(",")
            if comma and not metric.endswith("_stderr"):
                stderr = metrics[f"{metric}_stderr,{filter_name}"]
                known = stderr != "N/A" and not math.isnan(stderr)
                scores[task, key] = (value, stderr if known else None, metrics["sample_len"])
    return scores
