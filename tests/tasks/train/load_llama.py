"""Loads exported models with transformers, and compares their logits with Megatron's.

    python load_llama.py MODEL_DIR LOGITS [MODEL_DIR LOGITS ...]

Prints a JSON list. A process of its own: one into which megatron-core was imported without CUDA has
torch's functions replaced.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from transformers import GenerationConfig, LlamaForCausalLM


@torch.no_grad()
def describe(model_dir: str, logits_path: str) -> dict[str, Any]:
    llama, report = LlamaForCausalLM.from_pretrained(model_dir, output_loading_info=True)
    expected = torch.load(logits_path, weights_only=True)
    logits, padded = llama(expected["tokens"]).logits, expected["logits"]
    return {
        "difference": float((logits - padded[..., : logits.shape[-1]]).abs().max()),
        "std": float(logits.std()),
        "vocab": [logits.shape[-1], padded.shape[-1]],
        "not_loaded": [
            str(key)
            for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
            for key in report[kind]
        ],
        "config": json.loads(llama.config.to_json_string(use_diff=False)),
        "end_of_text": GenerationConfig.from_pretrained(model_dir).eos_token_id,
    }


if __name__ == "__main__":
    pairs = zip(sys.argv[1::2], sys.argv[2::2], strict=True)
    print(json.dumps([describe(*pair) for pair in pairs]))
