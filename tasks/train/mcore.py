"""What training uses of megatron-core, imported in one place.

Importing it here leads CUDA calls to the CPU where there is no GPU, and leaves out megatron-core's
import-time warnings (that Transformer Engine and Apex are not installed, notes to itself). The other
modules of this stage import megatron-core from here only.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.train import cpu


@contextmanager
def without_megatron_warnings() -> Iterator[None]:
    """Leave out what megatron-core warns of itself: absent accelerators, its own old names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"megatron\.")
        yield


with without_megatron_warnings(), cpu.importing_megatron():
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.transformer.transformer_config import TransformerConfig

cpu.install()

__all__ = [
    "GPTModel",
    "TransformerConfig",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
    "parallel_state",
    "tensor_parallel",
    "without_megatron_warnings",
]
