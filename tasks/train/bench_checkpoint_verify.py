"""Whether a save holds what the training state was: an arm that writes nothing, or later values, fails.

Every arm lays out and names its tensors in its own way, but all hold the same numbers. So the sum of
their bit patterns is compared, which does not depend on order, names or how tensors were put together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from configs.errors import CheckpointError
from tasks.train.bench_checkpoint_peers import plain_state
from tasks.train.replicas import INTEGERS
from tasks.train.state import TrainingState


@dataclass(frozen=True)
class Digest:
    """How many numbers there are, their size, and the sum of their bit patterns."""

    numbers: int
    size_bytes: int
    total: int


def digest_of_state(state: TrainingState) -> Digest:
    """Of weights and optimizer state, as they are now."""
    plain = plain_state(state)
    return digest_of_tensors([*plain["model"].values(), *plain["optimizer"].values()])


def digest_of_checkpoint(folder: Path, group: dist.ProcessGroup) -> Digest:
    """Of all tensors in a checkpoint, read by torch, whoever wrote it."""
    reader = FileSystemReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    load(tensors, storage_reader=reader, process_group=group)
    return digest_of_tensors(tensors.values())


def verify(name: str, folder: Path, expected: Digest, group: dist.ProcessGroup) -> None:
    """Refuse a save that does not hold the state at its moment."""
    found = digest_of_checkpoint(folder, group)
    if found != expected:
        raise CheckpointError(
            f"the save of {name} in {folder} does not hold the state at its moment: "
            f"{found}, expected {expected}"
        )


def digest_of_tensors(tensors: Iterable[torch.Tensor]) -> Digest:
    """Over floating-point tensors; single numbers are left out (step counts, which differ in form)."""
    numbers = size = total = 0
    for tensor in tensors:
        if not tensor.is_floating_point() or tensor.numel() < 2:
            continue
        bits = tensor.detach().contiguous().view(INTEGERS[tensor.element_size()])
        numbers += tensor.numel()
        size += tensor.numel() * tensor.element_size()
        total += int(bits.sum(dtype=torch.int64))
    return Digest(numbers, size, total)
