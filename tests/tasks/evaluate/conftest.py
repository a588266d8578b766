"""A run directory with held-out documents and a tiny random Llama that is exported already."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from evaluation_setup import (
    ALL_KINDS,
    STEP,
    WORDS,
    prepare_evaluation,
    write_heldout,
    write_user_tasks,
)

from configs.rundir import EvaluationDir, RunDir, step_folder_name


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
    torch.set_num_threads(1)  # As evaluation jobs run; more only wait for each other here.
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


@pytest.fixture(scope="session")
def all_kinds_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> RunDir:
    """A run whose evaluation, of tasks of all kinds, has its responses and no scores yet."""
    from tasks.evaluate.infer import infer

    run = RunDir(tmp_path_factory.mktemp("all_kinds") / "run")
    write_heldout(run.heldout_dir, count=6)
    write_user_tasks(run.heldout_dir)
    evaluation = prepare_evaluation(
        run,
        tiny_model,
        tasks=list(ALL_KINDS),
        task_dirs=[run.heldout_dir],
        limit=4,
        bootstrap_iterations=200,
        workers=2,
    )
    infer(evaluation, run.heldout_dir)
    return run


@pytest.fixture
def inferred(all_kinds_run: RunDir, tmp_path: Path) -> EvaluationDir:
    """A copy of that evaluation, to change."""
    evaluation = EvaluationDir(tmp_path / "evaluations" / step_folder_name(STEP), STEP)
    shutil.copytree(all_kinds_run.evaluation(STEP).path, evaluation.path)
    return evaluation
