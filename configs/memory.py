"""How much memory a training process needs: an estimate out of the config alone, no GPU involved.

Weights, gradients and optimizer state are counted exactly from the shapes. Activations follow the
accounting of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(2022), section 4, redone for Llama's layer: no dropout masks, no biases, SwiGLU instead of a 4h-wide
GELU, grouped-query attention. Per token and layer, in elements, with h hidden, k key-value, f
feed-forward width, a heads, s tokens in a sequence, t tensor-parallel size:

    fused kernels (Transformer Engine)   4h + (2h + 2k + 3f) / t
    plain layers                         6h + (4h + 5f + a s) / t

The first term is what sequence parallelism divides by t too. A recomputed layer keeps its input, h.
Of the pipeline stages, stage i of p holds activations of min(p - i, micro-batches) micro-batches
(1F1B schedule); the estimate is that of the stage that needs most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from configs.schema import ModelConfig, ParallelConfig, RunConfig
from configs.shapes import key_value_size, padded_vocab_size, stage_parameters

GIB = 1 << 30
_MIB = 1 << 20
_KIB = 1 << 10
_FP32_BYTES = 4


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one GPU of the pipeline stage that needs most."""

    weights: int
    gradients: int
    optimizer: int
    """Adam's two moments and, below fp32, the fp32 copy of the weights."""
    activations: int
    stage: int
    """The pipeline stage, from 0."""

    @property
    def total(self) -> int:
        """All parts; without the CUDA context, NCCL's buffers and fragmentation."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
        }
        return ", ".join(f"{name} {readable(size)}" for name, size in parts.items())


def readable(size_bytes: float) -> str:
    """`49.1 MiB`, `13.1 GiB`: binary units, as GPU memory is counted."""
    units = ((GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB"))
    unit, name = next((unit for unit in units if size_bytes >= unit[0]), units[-1])
    return f"{size_bytes / unit:.1f} {name}"


def gib_up(size_bytes: float) -> float:
    """In GiB, rounded up to a number that a person would write: 176, 1.3, 0.02."""
    gib = size_bytes / GIB
    step = 10.0 ** min(math.floor(math.log10(gib)), 1) / 10
    return round(math.ceil(gib / step) * step, 9)


def estimate_memory(
    config: RunConfig, vocab_size: int | None = None, *, fused_kernels: bool = True
) -> MemoryEstimate:
    """Memory of one GPU; precision `auto` counts as bf16. The layout must be divisible.

    `vocab_size` is that of the tokenizer where it is known, else the configured one.
    """
    vocab = padded_vocab_size(vocab_size or config.data.tokenizer.vocab_size)
    stages = range(config.parallel.pipeline)
    estimates = (_estimate_stage(config, vocab, stage, fused_kernels) for stage in stages)
    return max(estimates, key=lambda estimate: estimate.total)


def snapshot_bytes(config: RunConfig, vocab_size: int | None = None) -> int:
    """One snapshot on the process that copies most: its share of weights and optimizer state.

    Data-parallel replicas share the work. Precision `auto` counts as the smaller one, fp32, which needs
    no second copy of the weights.
    """
    vocab = padded_vocab_size(vocab_size or config.data.tokenizer.vocab_size)
    parallel = config.parallel
    stages = range(parallel.pipeline)
    most = max(stage_parameters(config.model, parallel, vocab, stage) for stage in stages)
    per_parameter = 3 * _FP32_BYTES + (2 if config.train.precision == "bf16" else 0)
    return -(-most * per_parameter // parallel.data)


def _estimate_stage(config: RunConfig, vocab: int, stage: int, fused: bool) -> MemoryEstimate:
    parallel = config.parallel
    parameters = stage_parameters(config.model, parallel, vocab, stage)
    element_bytes = _element_bytes(config)
    state_bytes = 2 * _FP32_BYTES if element_bytes == _FP32_BYTES else 3 * _FP32_BYTES
    shards = parallel.data if parallel.distributed_optimizer else 1
    return MemoryEstimate(
        weights=element_bytes * parameters,
        gradients=_FP32_BYTES * parameters,
        optimizer=state_bytes * -(-parameters // shards),
        activations=_activation_bytes(config, vocab, stage, fused),
        stage=stage,
    )


def _element_bytes(config: RunConfig) -> int:
    return _FP32_BYTES if config.train.precision == "fp32" else 2


def _activation_bytes(config: RunConfig, vocab: int, stage: int, fused: bool) -> int:
    model, parallel, train = config.model, config.parallel, config.train
    layers = model.num_layers // parallel.pipeline
    recomputed = min(parallel.recompute_layers, layers)
    layer = _layer_elements(model, parallel, fused)
    kept = model.hidden_size // (parallel.tensor if parallel.sequence else 1)
    one_batch = (layers - recomputed) * layer + recomputed * kept
    micro_batches = -(-train.global_batch_size // (train.micro_batch_size * parallel.data))
    elements = min(parallel.pipeline - stage, micro_batches) * one_batch
    if recomputed:
        elements += layer  # the one that is being recomputed
    per_token = elements * _element_bytes(config)
    if stage == parallel.pipeline - 1:
        per_token += _output_bytes(config, vocab)
    return per_token * train.micro_batch_size * model.sequence_length


def _layer_elements(model: ModelConfig, parallel: ParallelConfig, fused: bool) -> int:
    """Elements per token that one layer keeps for its backward pass, on one process."""
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    if fused:
        whole, divided = 4 * hidden, 2 * hidden + 2 * key_value_size(model) + 3 * ffn
    else:
        scores = model.num_attention_heads * model.sequence_length
        whole, divided = 6 * hidden, 4 * hidden + 5 * ffn + scores
    if parallel.sequence:
        whole //= parallel.tensor
    return whole + divided // parallel.tensor


def _output_bytes(config: RunConfig, vocab: int) -> int:
    """Per token: the final norm's input and output, the logits, their fp32 softmax."""
    parallel, element_bytes = config.parallel, _element_bytes(config)
    norm = 2 * config.model.hidden_size // (parallel.tensor if parallel.sequence else 1)
    return element_bytes * norm + (element_bytes + _FP32_BYTES) * vocab // parallel.tensor
