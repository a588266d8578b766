"""A run directory with held-out documents and a tiny random Llama that is exported already."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from configs.rundir import EvaluationDir, RunDir
from configs.schema import EvaluateConfig

REPOSITORY = Path(__file__).parents[3]
STEP = 200
WORDS = (
    "river stone the old bridge of a city was built by people who came over the hills and "
    "made paper, glass and ships; in 1643 its library held nine thousand books."
).split()


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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: two layers, hidden size 32, random weights, byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS * 5, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory with a few held-out documents."""
    run = RunDir(tmp_path / "run")
    write_heldout(run.heldout_dir, count=6)
    return run


@pytest.fixture
def evaluation_of(run: RunDir, tiny_model: Path) -> Callable[..., EvaluationDir]:
    """Makes the evaluation folder as the flow leaves it before inference: model and config."""

    def make(**config: Any) -> EvaluationDir:
        evaluation = run.evaluation(STEP)
        shutil.copytree(tiny_model, evaluation.model_dir, dirs_exist_ok=True)
        evaluation.config_path.write_text(EvaluateConfig(**config).model_dump_json())
        return evaluation

    return make


def stage(name: str, run: RunDir, *, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `python -m tasks.evaluate.NAME RUN_DIR STEP` to its end."""
    command = [*(prefix or ("-m", f"tasks.evaluate.{name}")), str(run.path), str(STEP)]
    return subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
