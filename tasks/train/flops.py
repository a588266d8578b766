"""Floating-point operations of a training step, and what devices can do at best."""

from __future__ import annotations

import re

from configs.schema import ModelConfig, TrainConfig
from configs.shapes import key_value_size

# Dense bf16 peaks in TFLOP/s, from the vendors' data sheets. The first name found in the device's
# name counts, so a variant stands before the family that it belongs to.
_PEAK_BF16_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "GH200": 989.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "A40": 149.7,
    "A30": 165.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
}


def flops_per_token(model: ModelConfig, padded_vocab: int) -> float:
    """Operations of the forward and backward pass per token.

    Matrix products only, each multiply-add as two; the backward pass costs twice the forward pass.
    Attention counts the half under the causal mask: the work that is needed, however it is done.
    """
    hidden, key_value = model.hidden_size, key_value_size(model)
    projections = 2 * hidden * (hidden + 2 * key_value) + 2 * hidden * hidden
    attention = 2 * 2 * hidden * model.sequence_length / 2
    mlp = 3 * 2 * hidden * model.ffn_hidden_size
    output = 2 * hidden * padded_vocab
    return 3.0 * (model.num_layers * (projections + attention + mlp) + output)


def peak_flops(train: TrainConfig, device_name: str, precision: str) -> float | None:
    """Peak of one device in FLOP/s: as configured, or looked up; None where it is not known."""
    if train.peak_tflops is not None:
        return train.peak_tflops * 1e12
    if precision != "bf16":
        return None
    for name, tflops in _PEAK_BF16_TFLOPS.items():
        if re.search(rf"\b{name}\b", device_name):
            return tflops * 1e12
    return None


def utilisation(
    tokens_per_s: float, per_token: float, peak: float | None, devices: int
) -> float | None:
    """Model FLOPs utilisation: the share of the devices' peak that the model's own work fills."""
    if peak is None:
        return None
    return tokens_per_s * per_token / (peak * devices)
