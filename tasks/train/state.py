"""The training state: what a checkpoint holds, and how it maps onto the parallel layout.

Everything is kept as sharded tensors with global shapes, or as plain values that all ranks share, so
a checkpoint can be loaded under other parallel sizes. Only the random state belongs to one layout.
No checkpoint holds pickled objects beside its index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from configs.errors import CheckpointError
from configs.schema import ParallelConfig
from tasks.train.mcore import (
    DistributedDataParallel,
    GPTModel,
    OptimizerParamScheduler,
    ShardedTensor,
    parallel_state,
    tensor_parallel,
)

ShardedState = dict[str, Any]

DISTRIBUTED_OPTIMIZER = "distributed_optimizer"
_EXTRA_STATE = "_extra_state"
DISTRIBUTED_SHARDING = "fully_reshardable"
"""Of megatron-core's formats of the distributed optimizer the one that names whole parameters."""
_OPTIMIZER_FORMAT = {
    "distrib_optim_sharding_type": DISTRIBUTED_SHARDING,
    "chained_optim_avoid_prefix": True,
}


@dataclass
class TrainingState:
    """All that changes while training."""

    ddp: DistributedDataParallel
    optimizer: Any
    schedule: OptimizerParamScheduler
    step: int = 0
    consumed_samples: int = 0


def model_state(model: GPTModel) -> ShardedState:
    """The model's weights as sharded tensors, without the layers' empty extra state."""
    state = model.sharded_state_dict()
    return {name: value for name, value in state.items() if not name.endswith(_EXTRA_STATE)}


def load_model_state(model: GPTModel, state: dict[str, torch.Tensor]) -> None:
    """Put loaded weights into the model; every weight must be there."""
    result = model.load_state_dict(state, strict=False)
    missing = [name for name in result.missing_keys if not name.endswith(_EXTRA_STATE)]
    if missing or result.unexpected_keys:
        raise CheckpointError(
            f"the checkpoint does not fit the model: missing {missing}, "
            f"unexpected {result.unexpected_keys}"
        )


def sharded_state(
    state: TrainingState, *, is_loading: bool, with_random_state: bool = True
) -> ShardedState:
    """The whole training state in megatron-core's sharded form, to save it or to load into."""
    weights = model_state(state.ddp.module)
    sharded: ShardedState = {
        "model": weights,
        "optimizer": state.optimizer.sharded_state_dict(
            weights, is_loading=is_loading, metadata=_OPTIMIZER_FORMAT
        ),
        "schedule": state.schedule.state_dict(),
        "step": state.step,
        "consumed_samples": state.consumed_samples,
    }
    if with_random_state:
        sharded["random_state"] = random_state()
    return sharded


def restore(state: TrainingState, loaded: dict[str, Any]) -> None:
    """Put a loaded checkpoint into the training state."""
    load_model_state(state.ddp.module, loaded["model"])
    state.optimizer.load_state_dict(loaded["optimizer"])
    state.schedule.load_state_dict(loaded["schedule"])
    state.step = int(loaded["step"])
    state.consumed_samples = int(loaded["consumed_samples"])
    if "random_state" in loaded:
        set_random_state(loaded["random_state"])


def parallel_sizes(parallel: ParallelConfig) -> dict[str, int]:
    """The layout that a checkpoint was saved under, as its marker records it."""
    return {
        "tensor": parallel.tensor,
        "pipeline": parallel.pipeline,
        "data": parallel.data,
        DISTRIBUTED_OPTIMIZER: int(parallel.distributed_optimizer),
    }


def optimizer_parts(optimizer: Any) -> list[Any]:
    """megatron-core's optimizers: one for all parameters of a dense model."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def is_distributed(optimizer: Any) -> bool:
    """Whether optimizer state is sharded over data-parallel ranks."""
    return any(hasattr(part, "gbuf_ranges") for part in optimizer_parts(optimizer))


def optimizer_step(optimizer: Any) -> float:
    """Adam's count of steps, which corrects its bias; all parameters share it."""
    for part in optimizer_parts(optimizer):
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                step = part.optimizer.state[parameter].get("step", group.get("step", 0))
                return float(step)
    return 0.0


def set_optimizer_step(optimizer: Any, step: float) -> None:
    """Set Adam's count of steps, kept with each parameter (torch) or group (fused kernels)."""
    for part in optimizer_parts(optimizer):
        for group in part.optimizer.param_groups:
            if "step" in group:
                group["step"] = type(group["step"])(step)
            for parameter in group["params"]:
                kept = part.optimizer.state[parameter]
                if "step" in kept:
                    kept["step"].fill_(step)


def random_state() -> ShardedTensor:
    """The states of all of this rank's generators, in one row of bytes."""
    row = torch.cat(list(_generator_states().values()))
    places = (
        (
            0,
            parallel_state.get_pipeline_model_parallel_rank(),
            parallel_state.get_pipeline_model_parallel_world_size(),
        ),
        (
            1,
            parallel_state.get_tensor_model_parallel_rank(),
            parallel_state.get_tensor_model_parallel_world_size(),
        ),
        (
            2,
            parallel_state.get_data_parallel_rank(),
            parallel_state.get_data_parallel_world_size(),
        ),
    )
    return ShardedTensor.from_rank_offsets("random_state", row, *places, prepend_axis_num=3)


def set_random_state(row: torch.Tensor) -> None:
    states = _generator_states()
    sizes = [state.numel() for state in states.values()]
    parts = dict(zip(states, torch.split(row.view(-1).cpu(), sizes), strict=True))
    torch.set_rng_state(parts.pop("cpu").clone())
    torch.cuda.set_rng_state(parts.pop("cuda").clone())
    tracker = tensor_parallel.get_cuda_rng_tracker()
    tracker.set_states({name: part.clone() for name, part in parts.items()})


def _generator_states() -> dict[str, torch.Tensor]:
    tracked = tensor_parallel.get_cuda_rng_tracker().get_states()
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
        **{name: tracked[name] for name in sorted(tracked)},
    }
