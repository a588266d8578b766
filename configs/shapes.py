"""Sizes that follow from the model section: the padded vocabulary, the number of parameters."""

from __future__ import annotations

from configs.schema import ModelConfig, ParallelConfig

VOCAB_MULTIPLE = 128


def padded_vocab_size(vocab_size: int) -> int:
    """Rows of the embedding: the next multiple of 128, whatever the tensor-parallel size.

    It must not depend on parallel sizes, or a checkpoint could not be loaded under others.
    """
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def key_value_size(model: ModelConfig) -> int:
    """Width of a layer's keys, and of its values."""
    return model.hidden_size // model.num_attention_heads * model.num_query_groups


def count_parameters(model: ModelConfig, vocab_size: int) -> int:
    """Parameters of the whole model with `vocab_size` rows in the embedding and in the output."""
    return stage_parameters(model, ParallelConfig(), vocab_size, stage=0)


def stage_parameters(
    model: ModelConfig, parallel: ParallelConfig, vocab_size: int, stage: int
) -> int:
    """Parameters on one process of a pipeline stage, counted from 0."""
    hidden, tensor = model.hidden_size, parallel.tensor
    attention = hidden * (2 * hidden + 2 * key_value_size(model))
    mlp = 3 * hidden * model.ffn_hidden_size
    layer = (attention + mlp) // tensor + 2 * hidden
    parameters = model.num_layers // parallel.pipeline * layer
    if stage == 0:
        parameters += vocab_size * hidden // tensor
    if stage == parallel.pipeline - 1:
        parameters += vocab_size * hidden // tensor + hidden
    return parameters
