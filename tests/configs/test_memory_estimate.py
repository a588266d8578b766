"""The memory estimate, against models that are really built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from configs.memory import GIB, estimate_memory, gib_up, readable
from configs.schema import ModelConfig, RunConfig
from configs.shapes import count_parameters, padded_vocab_size

MODEL = {
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 176,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "sequence_length": 96,
}
VOCAB = 512


def make(**sections: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": MODEL,
            "train": {"precision": "fp32", "global_batch_size": 24, "micro_batch_size": 3},
            "data": {"tokenizer": {"vocab_size": VOCAB}},
            **sections,
        }
    )


@pytest.mark.slow
def test_parameters_are_those_of_a_real_llama() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = ModelConfig.model_validate(MODEL)
    config = LlamaConfig(
        num_hidden_layers=4,
        hidden_size=64,
        intermediate_size=176,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        llama = LlamaForCausalLM(config)
    assert count_parameters(model, VOCAB) == sum(p.numel() for p in llama.parameters())


def test_one_process_holds_everything_in_full_precision() -> None:
    config = make()
    parameters = count_parameters(config.model, VOCAB)
    estimate = estimate_memory(config)
    assert estimate.weights == estimate.gradients == 4 * parameters
    assert estimate.optimizer == 8 * parameters


def test_mixed_precision_keeps_eighteen_bytes_a_parameter() -> None:
    config = make(train={"precision": "bf16"})
    estimate = estimate_memory(config)
    states = estimate.weights + estimate.gradients + estimate.optimizer
    assert states == 18 * count_parameters(config.model, VOCAB)


def test_distributed_optimizer_divides_its_state_only() -> None:
    parallel = {"data": 4, "distributed_optimizer": True}
    whole, divided = (
        estimate_memory(make(parallel={"data": 4})),
        estimate_memory(make(parallel=parallel)),
    )
    assert divided.optimizer == -(-whole.optimizer // 32) * 8  # whole parameters of 8 bytes
    assert (divided.weights, divided.gradients) == (whole.weights, whole.gradients)


def test_pipeline_stages_split_layers_and_ends() -> None:
    whole = count_parameters(make().model, VOCAB)
    estimate = estimate_memory(make(parallel={"pipeline": 2}))
    layers = whole - 2 * VOCAB * 64 - 64
    assert estimate.weights in (
        4 * (layers // 2 + VOCAB * 64),
        4 * (layers // 2 + VOCAB * 64 + 64),
    )


def test_first_stage_of_a_long_pipeline_needs_most_activations() -> None:
    shallow = make(parallel={"pipeline": 4})
    assert estimate_memory(shallow).stage == 0
    one_batch = {"precision": "fp32", "global_batch_size": 3, "micro_batch_size": 3}
    assert estimate_memory(make(parallel={"pipeline": 4}, train=one_batch)).stage == 3


def test_vocabulary_is_padded() -> None:
    assert padded_vocab_size(512) == 512
    assert estimate_memory(make(), 513) == estimate_memory(make(), 640)


def plain_activations(config: RunConfig) -> int:
    return estimate_memory(config, fused_kernels=False).activations


@pytest.mark.slow
def test_activations_are_those_that_a_real_forward_pass_keeps() -> None:
    configs = [
        make(),
        make(model={**MODEL, "num_query_groups": 4, "ffn_hidden_size": 300}),
        make(train={"precision": "fp32", "micro_batch_size": 7, "global_batch_size": 7}),
        make(parallel={"recompute_layers": 3}),
    ]
    *measured, measured_with_recomputation = measure_activations(configs)
    for config, kept_bytes in zip(configs[:3], measured, strict=True):
        assert plain_activations(config) == pytest.approx(kept_bytes, rel=0.08)
    # Beside what is kept, the backward pass has one recomputed layer at a time.
    layer = plain_activations(make()) - plain_activations(make(model={**MODEL, "num_layers": 3}))
    expected = measured_with_recomputation + layer
    assert plain_activations(configs[3]) == pytest.approx(expected, rel=0.1)


def measure_activations(configs: list[RunConfig]) -> list[int]:
    script = str(Path(__file__).with_name("measure_activations.py"))
    done = subprocess.run(
        [sys.executable, script, *(config.model_dump_json() for config in configs)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [int(size_bytes) for size_bytes in json.loads(done.stdout)]


def test_sequence_parallelism_and_recomputation_save_activations() -> None:
    def activations(**parallel: object) -> int:
        return estimate_memory(make(parallel={"tensor": 2, **parallel})).activations

    assert (
        activations() > activations(sequence=True) > activations(sequence=True, recompute_layers=3)
    )


def test_large_model_matches_published_shares() -> None:
    """175B on t=8, p=8, with recomputation: weights and states are 18 bytes over 64 processes."""
    config = RunConfig.model_validate(
        {
            "model": {"num_layers": 96, "hidden_size": 12288, "ffn_hidden_size": 32768,
                      "num_attention_heads": 96, "num_query_groups": 96, "sequence_length": 2048},
            "parallel": {"tensor": 8, "pipeline": 8, "sequence": True},
            "train": {"precision": "bf16", "global_batch_size": 64, "micro_batch_size": 1},
            "data": {"tokenizer": {"vocab_size": 51200}},
        }
    )  # fmt: skip
    parameters = count_parameters(config.model, 51200)
    estimate = estimate_memory(config)
    states = estimate.weights + estimate.gradients + estimate.optimizer
    assert states == pytest.approx(18 * parameters / 64, rel=0.05)
    # 34 sbh / t a layer for GPT's 4h-wide GELU and dropout; 12 layers and 8 micro-batches at stage 0.
    published = 34 * 2048 * 12288 / 8 * 12 * 8
    assert estimate.activations == pytest.approx(published, rel=0.1)
    assert 20 < estimate.total / GIB < 80


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0.0 KiB"), (126_000, "123.0 KiB"), (3_550_000, "3.4 MiB"), (GIB - 1, "1024.0 MiB"), (GIB, "1.0 GiB"),
     (80 * GIB, "80.0 GiB")],
)  # fmt: skip
def test_sizes_as_people_read_them(size_bytes: int, text: str) -> None:
    assert readable(size_bytes) == text


@pytest.mark.parametrize(
    ("gib", "offered"),
    [(175.7, 176.0), (10.0, 10.0), (9.95, 10.0), (1.21, 1.3), (0.3, 0.3), (0.0123, 0.013)],
)
def test_a_limit_that_is_offered_is_rounded_up(gib: float, offered: float) -> None:
    assert gib_up(gib * GIB) == offered
