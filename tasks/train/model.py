"""The model: megatron-core's GPTModel in Llama's shape.

RMSNorm, SwiGLU, rotary embeddings, grouped-query attention, no biases, untied output, no dropout.
On GPUs with Transformer Engine its layers are used; they fuse a norm into the linear layer after it
(`self_attention.linear_qkv.layer_norm_weight` instead of `input_layernorm.weight`,
`mlp.linear_fc1.layer_norm_weight` instead of `pre_mlp_layernorm.weight`). Checkpoints carry the
fused names in both cases, because megatron-core's local layers map theirs onto them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F

from configs.errors import ConfigError
from configs.files import sha256_of_json
from configs.schema import ModelConfig, RunConfig
from configs.shapes import padded_vocab_size
from tasks.train.mcore import (
    GPTModel,
    TransformerConfig,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
    parallel_state,
    without_megatron_warnings,
)


def model_fingerprint(model: ModelConfig, padded_vocab: int, tokenizer_sha256: str) -> str:
    """Equal for two checkpoints exactly when the weights of one fit the other's model and tokens."""
    return sha256_of_json(
        {
            "model": model.model_dump(mode="json"),
            "padded_vocab_size": padded_vocab,
            "tokenizer_sha256": tokenizer_sha256,
        }
    )


def transformer_engine_available() -> bool:
    """Whether Transformer Engine's layers can be used."""
    return torch.cuda.is_available() and find_spec("transformer_engine") is not None


@without_megatron_warnings()
def transformer_config(config: RunConfig, dtype: torch.dtype) -> TransformerConfig:
    """megatron-core's view of the model and of how it is spread."""
    model, parallel = config.model, config.parallel
    on_gpu = torch.cuda.is_available()
    sequence_parallel = parallel.sequence and parallel.tensor > 1
    if sequence_parallel and not transformer_engine_available():
        raise ConfigError(
            "parallel.sequence needs Transformer Engine, whose RMSNorm works on parts of a sequence; "
            "install transformer-engine on a machine with GPUs, or set parallel.sequence to false"
        )
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=model.init_std,
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        sequence_parallel=sequence_parallel,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        use_cpu_initialization=not on_gpu,
        bias_activation_fusion=on_gpu,
        masked_softmax_fusion=on_gpu,
        persist_layer_norm=on_gpu,
        gradient_accumulation_fusion=transformer_engine_available(),
        deallocate_pipeline_outputs=True,
        **_recompute(parallel.recompute_layers),
    )


def _recompute(layers: int) -> dict[str, Any]:
    if layers == 0:
        return {}
    return {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": layers,
    }


@without_megatron_warnings()
def build_model(config: RunConfig, vocab_size: int, dtype: torch.dtype) -> GPTModel:
    """This rank's part of the model, with random weights.

    Needs megatron-core's parallel state and random state (`tasks.train.distributed`).
    """
    spec = (
        get_gpt_layer_with_transformer_engine_spec()
        if transformer_engine_available()
        else get_gpt_layer_local_spec(normalization="RMSNorm")
    )
    model = GPTModel(
        config=transformer_config(config, dtype),
        transformer_layer_spec=spec,
        vocab_size=padded_vocab_size(vocab_size),
        max_sequence_length=config.model.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        rotary_base=config.model.rotary_base,
    )
    device = (
        torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    )
    return model.to(device=device, dtype=dtype)
