"""The benchmark's tasks: twelve of unequal size, made of the text that comes with Python.

All of lm-eval's output types are there, few-shot prompts, and slow metrics: programs that are run, and
a judge that is waited for. The documents are the same each time on the same version of Python.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.evaluate import bench_evaluate_metrics

Document = dict[str, Any]
Make = Callable[[random.Random, Sequence[str]], Document]

_FUNCTIONS = "bench_metrics"
"""Name of the module beside the YAML files."""
_CONTEXT = 'doc_to_text: "{{context}}"\ndoc_to_target: "{{target}}"\n'
_ROLLING = """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
"""
_LAST_WORD = f"""output_type: loglikelihood
{_CONTEXT}metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
_CHOICE = """output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""
_SHOTS = "fewshot_split: train\nnum_fewshot: 2\n"


def _generated(tokens: int, metric: str = "exact_match", function: str = "", stop: str = "") -> str:
    until = json.dumps([stop] if stop else ["<|never|>"])
    return (
        f"output_type: generate_until\n{_CONTEXT}"
        f"generation_kwargs: {{until: {until}, max_gen_toks: {tokens}, do_sample: false}}\n"
        + (f"process_results: !function {_FUNCTIONS}.{function}\n" if function else "")
        + f"metric_list:\n  - {{metric: {metric}, aggregation: mean, higher_is_better: true}}\n"
    )


def _passage(rng: random.Random, passages: Sequence[str]) -> Document:
    return {"text": rng.choice(passages)}


def _last_word(rng: random.Random, passages: Sequence[str]) -> Document:
    context, word = rng.choice(passages).rsplit(" ", 1)
    return {"context": context, "target": f" {word}"}


def _next_words(rng: random.Random, passages: Sequence[str]) -> Document:
    texts = [rng.choice(passages).split() for _ in range(4)]
    answer = rng.randrange(4)
    choices = [" " + " ".join(words[-12:]) for words in texts]
    return {"context": " ".join(texts[answer][:-12]), "choices": choices, "answer": answer}


def _spelled(rng: random.Random, passages: Sequence[str]) -> Document:
    word = max(rng.choice(passages).split(), key=len)
    wrong = [" " + "".join(rng.sample(word, len(word))) for _ in range(2)]
    return {
        "context": "A word of the Python manual:",
        "choices": [f" {word}", *wrong],
        "answer": 0,
    }


def _sum(rng: random.Random, passages: Sequence[str]) -> Document:
    first, second = rng.randrange(100), rng.randrange(100)
    return {"context": f"{first} + {second} =", "target": f" {first + second}"}


def _shuffled(rng: random.Random, passages: Sequence[str]) -> Document:
    words = rng.sample(rng.choice(passages).split(), 6)
    return {"context": f"{', '.join(words)}. In order:", "target": f" {', '.join(sorted(words))}"}


def _explained(rng: random.Random, passages: Sequence[str]) -> Document:
    text = rng.choice(passages)
    words = rng.sample([word.lower() for word in text.split()], 5)
    return {"context": f"{text}\nIn other words:", "target": "", "words": words}


def _function(rng: random.Random, passages: Sequence[str]) -> Document:
    number, sign = rng.randrange(2, 20), rng.choice("+-*")
    name = {"+": "add", "-": "subtract", "*": "multiply_by"}[sign]
    context = f'def {name}_{number}(x):\n    """Return x {sign} {number}."""\n'
    tests = [
        f"assert {name}_{number}({x}) == {x} {sign} {number}" for x in rng.sample(range(99), 8)
    ]
    return {"context": context, "target": "", "tests": tests}


@dataclass(frozen=True)
class _Task:
    documents: int
    make: Make
    yaml: str


_TASKS = {
    "next_words": _Task(44, _next_words, _CHOICE),
    "reading": _Task(28, _passage, _ROLLING),
    "next_words_after_two": _Task(8, _next_words, _CHOICE + _SHOTS),
    "last_word": _Task(30, _last_word, _LAST_WORD),
    "spelling": _Task(10, _spelled, _CHOICE),
    "sums": _Task(24, _sum, _generated(6, stop="\n") + _SHOTS),
    "sorting": _Task(7, _shuffled, _generated(20)),
    "reading_little": _Task(3, _passage, _ROLLING),
    "explaining_to_a_judge": _Task(12, _explained, _generated(28, "judged", "ask_judge")),
    "short_answers_to_a_judge": _Task(8, _explained, _generated(8, "judged", "ask_judge")),
    "programs": _Task(10, _function, _generated(32, "passed", "run_program", stop="\ndef")),
    "one_line_programs": _Task(8, _function, _generated(12, "passed", "run_program", stop="\n\n")),
}
_RUN_CODE = ("programs", "one_line_programs")
_SHOT_DOCUMENTS = 6


def known_metric_s(scale: float = 1.0) -> dict[str, float]:
    """What is known of metrics before anything ran: the judge takes its time."""
    return {
        name: _documents(task, scale) * bench_evaluate_metrics.JUDGE_S
        for name, task in _TASKS.items()
        if "ask_judge" in task.yaml
    }


def _documents(task: _Task, scale: float) -> int:
    return max(1, round(task.documents * scale))


def write_suite(folder: Path, scale: float = 1.0) -> list[str]:
    """Write the tasks with `scale` times their documents; returns their names."""
    folder.mkdir(parents=True)
    shutil.copyfile(bench_evaluate_metrics.__file__, folder / f"{_FUNCTIONS}.py")
    passages = list(_passages())
    for name, task in _TASKS.items():
        rng = random.Random(name)  # noqa: S311  (no secret)
        count = _documents(task, scale)
        files = {"test": f"{name}.jsonl"}
        _write(folder / files["test"], [task.make(rng, passages) for _ in range(count)])
        if _SHOTS in task.yaml:
            files["train"] = f"{name}_shots.jsonl"
            shots = [task.make(rng, passages) for _ in range(_SHOT_DOCUMENTS)]
            _write(folder / files["train"], shots)
        head = (
            f"task: {name}\n"
            + ("unsafe_code: true\n" if name in _RUN_CODE else "")
            + f"dataset_path: json\ndataset_kwargs: {json.dumps({'data_files': files})}\n"
            + "test_split: test\n"
        )
        (folder / f"{name}.yaml").write_text(head + task.yaml + "metadata: {version: 1.0}\n")
    return list(_TASKS)


def _write(path: Path, documents: Sequence[Document]) -> None:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


def _passages() -> Iterator[str]:
    """Paragraphs of plain words out of the manual that `help()` shows."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            text = " ".join(paragraph.split())
            if (
                paragraph[:1].isalpha()
                and 300 <= len(text) <= 900
                and not re.search(r"[*|~]", text)
            ):
                yield text
