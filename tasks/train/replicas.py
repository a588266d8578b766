"""Silent corruption: data-parallel replicas must hold the same weights, bit for bit.

They start alike and apply the same updates, so a difference means that a machine has computed or
kept a wrong number. Compared are sums over the weights' bits, which do not depend on the order of
summation; one flipped bit always changes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tasks.train.distributed import World
from tasks.train.mcore import parallel_state

_WORD_BYTES = 8
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of a number."""


def checksum(model: torch.nn.Module) -> torch.Tensor:
    """One integer over the bits of all weights, modulo 2^64.

    Each parameter has an odd factor of its own, so that two of them cannot change places unseen.
    """
    sums = [_sum_of_bits(parameter.detach()) for parameter in model.parameters()]
    factors = torch.arange(len(sums), device=sums[0].device) * 2 + 1
    return (torch.stack(sums) * factors).sum()


def odd_ones(checksums: Sequence[int]) -> list[int]:
    """Places of the replicas that differ from the majority; all of them where there is none."""
    (usual, count), *others = Counter(checksums).most_common()
    if not others:
        return []
    majority = 2 * count > len(checksums)
    return [place for place, own in enumerate(checksums) if not majority or own != usual]


class ReplicaCheck:
    """Compares this rank's weights with those of its replicas."""

    def __init__(self, world: World, model: torch.nn.Module) -> None:
        self._world = world
        self._model = model
        self._group: dist.ProcessGroup = parallel_state.get_data_parallel_group()

    def compare(self) -> list[int]:
        """The global ranks whose weights are not to be trusted, alike on all ranks; mostly none."""
        own = checksum(self._model).reshape(1)
        replicas = own.new_empty(self._world.data_size)
        dist.all_gather_into_tensor(replicas, own, group=self._group)
        members = dist.get_process_group_ranks(self._group)
        suspects = [members[place] for place in odd_ones(replicas.tolist())]
        return self._agree(suspects)

    def _agree(self, suspects: list[int]) -> list[int]:
        """What any group of replicas has found, told to all."""
        found = torch.tensor([len(suspects)])
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._world.control)
        if not int(found):
            return []
        everybody: list[Any] = [None] * self._world.size
        dist.all_gather_object(everybody, suspects, group=self._world.control)
        return sorted({rank for told in everybody for rank in told})


def _sum_of_bits(weights: torch.Tensor) -> torch.Tensor:
    """Sum over the tensor's memory as integers; in words of 64 bits where it is made of such, for speed."""
    flat = weights.reshape(-1)
    narrow = INTEGERS[flat.element_size()]
    per_word = _WORD_BYTES // flat.element_size()
    if flat.numel() % per_word or flat.storage_offset() % per_word:
        return flat.view(narrow).sum(dtype=torch.int64)
    return flat.view(torch.int64).sum()
