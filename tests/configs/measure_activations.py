"""Measures what a real forward pass keeps for its backward pass, in fp32 on one process.

    python measure_activations.py CONFIG_JSON [CONFIG_JSON ...]

Prints a JSON list of bytes. A process of its own, for megatron-core's global state.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from configs.schema import RunConfig
from tasks.train import distributed
from tasks.train.model import build_model


def kept_bytes(config: RunConfig) -> int:
    """Bytes of all tensors that autograd saves, weights left out, shared memory counted once."""
    vocab, samples = config.data.tokenizer.vocab_size, config.train.micro_batch_size
    model = build_model(config, vocab, torch.float32)
    tokens = torch.randint(vocab, (samples, config.model.sequence_length))
    positions = torch.arange(config.model.sequence_length).expand_as(tokens)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(tokens, positions, None, labels=tokens)
    size_bytes = sum(storage.nbytes() for storage in kept.values())
    assert loss.requires_grad
    return size_bytes


if __name__ == "__main__":
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    configs = [RunConfig.model_validate_json(text) for text in sys.argv[1:]]
    distributed.start(configs[0])
    print(json.dumps([kept_bytes(config) for config in configs]))
    distributed.stop()
