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
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
    from megatron.core.dist_checkpointing.strategies import torch as torch_strategy
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
    from megatron.core.dist_checkpointing.strategies.fully_parallel import (
        FullyParallelSaveStrategyWrapper,
    )
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig

cpu.install()

__all__ = [
    "AsyncCallsQueue",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "FullyParallelSaveStrategyWrapper",
    "GPTDataset",
    "GPTDatasetConfig",
    "GPTModel",
    "IndexedDatasetBuilder",
    "OptimizerConfig",
    "OptimizerParamScheduler",
    "ShardedTensor",
    "Split",
    "TransformerConfig",
    "dist_checkpointing",
    "finalize_model_grads",
    "get_forward_backward_func",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
    "get_megatron_optimizer",
    "nested_values",
    "parallel_state",
    "save_preprocess",
    "tensor_parallel",
    "torch_strategy",
    "without_megatron_warnings",
]
