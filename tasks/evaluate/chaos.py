"""What `overland chaos --evaluation` asks of this stage: a tiny model, and what an evaluation has done.

python -m tasks.evaluate.chaos FOLDER SEED      makes FOLDER/model and FOLDER/tasks
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, read_record
from tasks.evaluate.chaos_tasks import WORDS, write_tasks
from tasks.evaluate.chaos_tasks import asked_tasks as asked_tasks
from tasks.evaluate.model_folder import model_identity
from tasks.evaluate.plan import EvaluationPlan
from tasks.evaluate.responses import shards_done
from tasks.evaluate.staging import SHARED_MEMORY
from tasks.evaluate.times import read_times

_END = "<|endoftext|>"


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
    tokenizer.train_from_iterator(WORDS * 5, trainer)
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
