"""The tasks of `overland chaos --evaluation`: each kind of request, few-shot, a group, and code that is run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.evaluate.sandbox import Limits, NoSandboxError, confined

TASKS = ("choice", "copy", "text", "shots", "pair")
CODE_TASK = "program"
"""Asked too where the kernel can confine what it runs."""
WORDS = [
    *("river", "stone", "old", "bridge", "city", "built", "people", "hills", "paper", "glass"),
    *("ship", "library", "nine", "thousand"),
]
_DOCUMENTS = {
    "choice": 200,
    "copy": 200,
    "text": 200,
    "shots": 20,
    "shots_train": 8,
    "pair_first": 15,
    "pair_second": 15,
    "program": 8,
}
_CHOICE = """
task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: choice.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{context}}\\nA:"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""
_COPY = """
task: copy
dataset_path: json
dataset_kwargs: {data_files: {test: copy.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: context
doc_to_target: target
generation_kwargs: {until: ["\\n"], max_gen_toks: 12}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
  - {metric: bleu, aggregation: bleu, higher_is_better: true}
"""
_TEXT = """
task: text
dataset_path: json
dataset_kwargs: {data_files: {test: text.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
  - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
"""
_SHOTS = """
include: choice.yaml
task: shots
dataset_kwargs: {data_files: {test: shots.jsonl, train: [shots_train.jsonl]}}
fewshot_split: train
num_fewshot: 2
"""
_OF_PAIR = """
include: choice.yaml
task: NAME
dataset_kwargs: {data_files: {test: NAME.jsonl}}
"""
_PAIR = """
group: pair
task: [pair_first, pair_second]
aggregate_metric_list:
  - {metric: acc, weight_by_size: true}
"""
_PROGRAM = """
include: copy.yaml
task: program
unsafe_code: true
dataset_kwargs: {data_files: {test: program.jsonl}}
process_results: !function programs.run
metric_list:
  - {metric: passed, aggregation: mean, higher_is_better: true}
"""
_PROGRAMS = """
def run(doc, results):
    try:
        exec(results[0], {})
    except Exception:
        pass
    return {"passed": float(len(results[0]) % 2)}
"""
_FILES = {
    "choice.yaml": _CHOICE,
    "copy.yaml": _COPY,
    "text.yaml": _TEXT,
    "shots.yaml": _SHOTS,
    "pair_first.yaml": _OF_PAIR.replace("NAME", "pair_first"),
    "pair_second.yaml": _OF_PAIR.replace("NAME", "pair_second"),
    "pair.yaml": _PAIR,
    "program.yaml": _PROGRAM,
    "programs.py": _PROGRAMS,
}


def asked_tasks() -> list[str]:
    """Those that can be scored on this machine."""
    try:
        confined(lambda: None, Limits(memory_bytes=1 << 30, time_s=60.0))
    except NoSandboxError:
        return [*TASKS]
    return [*TASKS, CODE_TASK]


def write_tasks(folder: Path, seed: int) -> None:
    """All tasks, with their documents."""
    draw = random.Random(seed)  # noqa: S311
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    for name, count in _DOCUMENTS.items():
        _write_lines(folder / f"{name}.jsonl", [_document(name, draw) for _ in range(count)])


def _document(name: str, draw: random.Random) -> dict[str, Any]:
    if name == "text":
        return {"text": _passage(draw, 40)}
    if name in ("copy", "program"):
        return {"context": f"{_passage(draw, 8)} =", "target": _passage(draw, 2)}
    choices = [f" {_passage(draw, 2 + number)}" for number in range(3)]
    return {"context": _passage(draw, 8), "choices": choices, "answer": draw.randrange(3)}


def _passage(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words))


def _write_lines(path: Path, documents: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
