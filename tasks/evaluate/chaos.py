"""What `overland chaos --evaluation` asks of this stage: a tiny model, tasks, and what an evaluation has done.

python -m tasks.evaluate.chaos FOLDER SEED      makes FOLDER/model and FOLDER/tasks
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, read_record
from tasks.evaluate.model_folder import model_identity
from tasks.evaluate.plan import EvaluationPlan
from tasks.evaluate.responses import shards_done
from tasks.evaluate.staging import SHARED_MEMORY
from tasks.evaluate.times import read_times

TASKS = ("choice", "copy", "text")
DOCUMENTS = 240
_END = "<|endoftext|>"
_WORDS = [
    *("river", "stone", "old", "bridge", "city", "built", "people", "hills", "paper", "glass"),
    *("ship", "library", "nine", "thousand"),
]
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


@dataclass(frozen=True)
class Progress:
    """How far an evaluation has come."""

    shards: int
    """Answered."""
    shards_in_all: int
    """0: there is no plan yet."""
    targets: int
    """Scored."""


def progress_of(folder: Path) -> Progress:
    """How far the evaluation in this folder is."""
    evaluation = EvaluationDir(folder, step=0)
    plan = read_record(evaluation.plan_path, EvaluationPlan)
    return Progress(
        shards=len(shards_done(evaluation)),
        shards_in_all=sum(len(task.shards) for task in plan.tasks) if plan else 0,
        targets=len(list(evaluation.target_scores_dir.glob("*.json"))),
    )


def scores_of(folder: Path) -> list[list[Any]] | None:
    """All scores, in a form that can be compared bit for bit; None when there are none."""
    scores = read_record(EvaluationDir(folder, step=0).scores_path, EvaluationScores)
    if scores is None:
        return None
    rows = ([s.task, s.metric, s.value, s.stderr, s.samples] for s in scores.scores)
    return sorted(json.loads(json.dumps(list(rows))), key=lambda row: row[:2])


def shards_computed_twice(folder: Path) -> list[str]:
    """Shards that were answered, and then answered again."""
    times = read_times(EvaluationDir(folder, step=0))
    answered = Counter(t.name for t in times if t.kind == "shard")
    return sorted(name for name, count in answered.items() if count > 1)


def shards_begun_again(folder: Path) -> int:
    """How often a shard was claimed that another worker had begun: that one's death is the cause."""
    claims = EvaluationDir(folder, step=0).claims_dir.glob("*.[0-9]*")
    return sum(path.suffix != ".0" for path in claims if not path.name.startswith("."))


def staged_copies(folder: Path) -> list[Path]:
    """Copies of the evaluation's model in this node's memory."""
    identity = model_identity(EvaluationDir(folder, step=0))[:32]
    return list((SHARED_MEMORY / f"overland-{os.getuid()}" / "models").glob(f"{identity}*"))


def write_tasks(folder: Path, seed: int) -> None:
    """Tasks of three kinds, with their documents."""
    draw = random.Random(seed)  # noqa: S311
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(TASKS, (_CHOICE, _COPY, _TEXT), strict=True):
        (folder / f"{name}.yaml").write_text(text)
    choice: list[dict[str, Any]] = []
    copy: list[dict[str, Any]] = []
    text_lines: list[dict[str, Any]] = []
    for _ in range(DOCUMENTS):
        choices = [f" {_passage(draw, 2 + number)}" for number in range(3)]
        answer = draw.randrange(3)
        choice.append({"context": _passage(draw, 8), "choices": choices, "answer": answer})
        copy.append({"context": f"{_passage(draw, 8)} =", "target": _passage(draw, 2)})
        text_lines.append({"text": _passage(draw, 40)})
    for name, documents in zip(TASKS, (choice, copy, text_lines), strict=True):
        _write_lines(folder / f"{name}.jsonl", documents)


def _passage(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(words))


def _write_lines(path: Path, documents: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


def write_model(folder: Path, seed: int) -> None:
    """A Llama of random weights with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_WORDS * 5, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END)
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    _folder, _seed = Path(sys.argv[1]), int(sys.argv[2])
    write_model(_folder / "model", _seed)
    write_tasks(_folder / "tasks", _seed)
