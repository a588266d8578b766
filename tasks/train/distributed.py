"""This process's place among the others: device, precision, process groups, seeds."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from configs.errors import ConfigError
from configs.node import node_name
from configs.schema import RunConfig, TrainConfig
from tasks.train.mcore import parallel_state, tensor_parallel

_AGREEMENT_MARGIN_S = 60.0

Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """Where this process stands, once all have met."""

    rank: int
    size: int
    device: torch.device
    dtype: torch.dtype
    control: dist.ProcessGroup
    """All ranks over gloo, for agreements. It waits longer than other groups, and than one try of a
    save."""

    @property
    def is_main(self) -> bool:
        """Whether this rank writes events and common files."""
        return self.rank == 0

    def from_main(self, make: Callable[[], Value]) -> Value:
        """What `make` gives on rank 0, on all ranks. Others may see files late: only rank 0 looks."""
        told: list[Any] = [make() if self.is_main else None]
        dist.broadcast_object_list(told, src=0, group=self.control)
        return told[0]  # type: ignore[no-any-return]

    @property
    def node(self) -> str:
        """Name of the machine that this rank runs on."""
        return node_name()

    @property
    def local_rank(self) -> int:
        """This rank's number on its node."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    @property
    def device_name(self) -> str:
        """The device's name, for people and for its peak performance."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"cpu ({platform.machine()})"

    @property
    def precision(self) -> str:
        return "bf16" if self.dtype is torch.bfloat16 else "fp32"

    @property
    def data_rank(self) -> int:
        return int(parallel_state.get_data_parallel_rank())

    @property
    def data_size(self) -> int:
        return int(parallel_state.get_data_parallel_world_size())


def start(config: RunConfig) -> World:
    """Meet the other processes and set up megatron-core's groups and seeds."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != config.parallel.world_size:
        raise ConfigError(
            f"the job has {size} processes, but tensor x pipeline x data parallel sizes need "
            f"{config.parallel.world_size}"
        )
    device = _device(config)
    timeout = timedelta(seconds=config.train.process_group_timeout_s)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.parallel.tensor,
        pipeline_model_parallel_size=config.parallel.pipeline,
        distributed_timeout_minutes=ceil(timeout.total_seconds() / 60),
    )
    seed_everything(config.seed)
    return World(
        rank=rank,
        size=size,
        device=device,
        dtype=resolve_dtype(config.train, device),
        control=dist.new_group(backend="gloo", timeout=_agreement_timeout(config)),
    )


def stop() -> None:
    """Leave the process groups."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def seed_everything(seed: int) -> None:
    """Seed torch and megatron-core's tracker; call after the model-parallel groups exist."""
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def resolve_dtype(train: TrainConfig, device: torch.device) -> torch.dtype:
    """The training precision; auto is bf16 on GPUs and fp32 without."""
    if train.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if train.precision == "bf16" else torch.float32


def compute_threads(configured: int | None, local_processes: int) -> int:
    """Compute threads of one process: as configured, or its share of the cores it may use."""
    return configured or max(1, len(os.sched_getaffinity(0)) // local_processes)


def _device(config: RunConfig) -> torch.device:
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(compute_threads(config.launcher.cpu_threads, local_processes))
    return torch.device("cpu")


def _agreement_timeout(config: RunConfig) -> timedelta:
    settings = config.checkpoint
    longest = max(config.train.process_group_timeout_s, settings.save_timeout_s)
    return timedelta(seconds=longest + _AGREEMENT_MARGIN_S)
