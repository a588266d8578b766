"""Cuts the training state into chunks: the pieces that are copied, written and found again.

A chunk is a block of a global tensor, as torch's distributed checkpoint format knows it: a key, the
global shape, offsets and sizes. It refers to live memory and is valid for as long as the model's and
the optimizer's tensors are the same objects, that is for a whole attempt once a checkpoint is loaded.

Data-parallel ranks hold the same weights (and, without the distributed optimizer, the same optimizer
state). Such a chunk has one owner among them, which alone copies and writes it: each rank handles its
share. All ranks compute the same owners from the same list, so nothing has to be exchanged.

Megatron's distributed optimizer keeps flat ranges of parameters, which cut through rows. Its own
reshardable format gathers whole parameters first. Here a range is cut into the few rectangles that
it consists of, which the format takes as they are: no rank waits for another (the idea is that of
ByteCheckpoint, NSDI'25, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from configs.errors import CheckpointError
from tasks.train.mcore import ShardedTensor, nested_values, parallel_state, save_preprocess
from tasks.train.state import (
    DISTRIBUTED_SHARDING,
    TrainingState,
    is_distributed,
    model_state,
    optimizer_parts,
    random_state,
    sharded_state,
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """A block of a global tensor, in this rank's memory."""

    key: str
    """megatron-core's name of the global tensor."""
    global_shape: Shape
    offsets: Shape
    sizes: Shape
    tensor: torch.Tensor
    """The live data; of the same number of elements as `sizes`."""
    owner: int | None = None
    """Data-parallel rank that copies it; None: no other rank has it."""
    is_written: bool = True
    """Whether its owner writes it to storage: one of the tensor-parallel replicas does."""

    @property
    def size_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


def chunks_of(state: TrainingState) -> list[Chunk]:
    """All chunks of this rank's state, each with its owner, in the same order on all replicas."""
    if is_distributed(state.optimizer):
        weights = model_state(state.ddp.module)
        pieces = [*_sharded({"model": dict(weights), "random_state": random_state()})]
        chunks = [_chunk(piece) for piece in pieces]
        chunks += _optimizer_ranges(state, _sharded({"model": dict(weights)}))
    else:
        whole = sharded_state(state, is_loading=False)
        chunks = [_chunk(piece) for piece in _sharded(whole)]
    return assign_owners(chunks, parallel_state.get_data_parallel_world_size())


def common_state(state: TrainingState) -> dict[str, Any]:
    """What a checkpoint holds beside tensors: a small nested dict, in megatron-core's structure."""
    if not is_distributed(state.optimizer):
        common: dict[str, Any] = save_preprocess(
            sharded_state(state, is_loading=False), validate_access_integrity=False
        )[1]
        return common
    (part,) = optimizer_parts(state.optimizer)
    return {
        "optimizer": {
            **part.state_dict(),
            "param_state_sharding_type": DISTRIBUTED_SHARDING,
        },
        "schedule": state.schedule.state_dict(),
        "step": state.step,
        "consumed_samples": state.consumed_samples,
    }


def held_by(chunks: Iterable[Chunk], data_rank: int) -> list[Chunk]:
    """The chunks that a data-parallel rank copies."""
    return [chunk for chunk in chunks if chunk.owner in (None, data_rank)]


def assign_owners(chunks: list[Chunk], data_size: int) -> list[Chunk]:
    """Spread the replicated chunks over the data-parallel ranks, largest first, by bytes."""
    loads = [0] * data_size
    owners: dict[int, int] = {}
    replicated = [i for i, chunk in enumerate(chunks) if chunk.owner is not None]
    for index in sorted(replicated, key=lambda i: (-chunks[i].size_bytes, i)):
        owner = loads.index(min(loads))
        loads[owner] += chunks[index].size_bytes
        owners[index] = owner
    return [replace(c, owner=owners[i]) if i in owners else c for i, c in enumerate(chunks)]


def rectangles(start: int, end: int, shape: Shape) -> Iterator[tuple[int, Shape, Shape]]:
    """Cut a flat range of a tensor into blocks: (flat start, offsets, sizes) of each, in order.

    A matrix gives at most three: the rest of a row, whole rows, the beginning of a row.
    """
    if start >= end:
        return
    if len(shape) <= 1:
        yield start, (start,) * len(shape), (end - start,) * len(shape)
        return
    row = math.prod(shape[1:])
    while start < end:
        index, within = divmod(start, row)
        if within == 0 and end - start >= row:
            count = (end - start) // row
            yield start, (index, *(0 for _ in shape[1:])), (count, *shape[1:])
            start += count * row
            continue
        stop = min(end, (index + 1) * row)
        for flat, offsets, sizes in rectangles(within, stop - index * row, shape[1:]):
            yield index * row + flat, (index, *offsets), (1, *sizes)
        start = stop


def _sharded(state: dict[str, Any]) -> list[ShardedTensor]:
    """The sharded tensors of a nested dict, factories (gate and up in one matrix) taken apart."""
    sharded, _ = save_preprocess(state, validate_access_integrity=False)
    return list(nested_values(sharded))


def _chunk(piece: ShardedTensor) -> Chunk:
    data = piece.data.detach()
    replica = piece.replica_id
    # (pipeline, tensor, data) from megatron-core; a plain number is not replicated over data ranks.
    is_replicated = isinstance(replica, tuple)
    return Chunk(
        key=piece.key,
        global_shape=tuple(piece.global_shape),
        offsets=tuple(piece.global_offset),
        sizes=(*(1 for _ in range(piece.prepend_axis_num)), *piece.local_shape),
        tensor=data,
        owner=replica[-1] if is_replicated else None,
        is_written=not any(replica[:-1]) if is_replicated else replica == 0,
    )


def _optimizer_ranges(state: TrainingState, weights: list[ShardedTensor]) -> Iterator[Chunk]:
    """This rank's flat ranges of optimizer state, as blocks of the global tensors."""
    (part,) = optimizer_parts(state.optimizer)
    places = _pieces_by_parameter(state, weights)
    for ranges_of_dtype in part.gbuf_ranges:
        for buckets in ranges_of_dtype.values():
            for bucket in buckets:
                for parameter, found in bucket["param_map"].items():
                    tensors = part._get_main_param_and_optimizer_states(parameter)
                    span = found["param"]
                    for name, tensor in tensors.items():
                        if name != "step":
                            yield from _blocks(
                                name, tensor.detach(), span.start, span.end, places[parameter]
                            )


def _pieces_by_parameter(
    state: TrainingState, weights: list[ShardedTensor]
) -> dict[torch.nn.Parameter, list[ShardedTensor]]:
    """The sharded pieces that each parameter consists of: they are views of its memory."""
    by_storage: dict[int, list[ShardedTensor]] = {}
    for piece in weights:
        by_storage.setdefault(piece.data.untyped_storage().data_ptr(), []).append(piece)
    found = {}
    for parameter in state.ddp.module.parameters():
        start, end = parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes
        near = by_storage.get(parameter.untyped_storage().data_ptr(), [])
        found[parameter] = [piece for piece in near if start <= piece.data.data_ptr() < end]
        if sum(piece.data.numel() for piece in found[parameter]) != parameter.numel():
            raise CheckpointError("a parameter is not made of the pieces that its checkpoint has")
    return found


def _blocks(
    name: str, tensor: torch.Tensor, start: int, end: int, pieces: list[ShardedTensor]
) -> Iterator[Chunk]:
    """`tensor` holds elements `start` to `end` of a parameter that consists of `pieces`."""
    base = min(piece.data.data_ptr() for piece in pieces)
    for piece in pieces:
        if not piece.data.is_contiguous():
            raise CheckpointError(f"{piece.key} is cut across its rows, which cannot be saved")
        first = (piece.data.data_ptr() - base) // piece.data.element_size()
        low, high = max(start, first), min(end, first + piece.data.numel())
        for flat, offsets, sizes in rectangles(low - first, high - first, tuple(piece.local_shape)):
            begin = first + flat - start
            prepended = piece.prepend_axis_num
            places = zip(
                piece.global_offset, (*(0 for _ in range(prepended)), *offsets), strict=True
            )
            yield Chunk(
                key=f"optimizer.state.{name}.{piece.key}",
                global_shape=tuple(piece.global_shape),
                offsets=tuple(a + b for a, b in places),
                sizes=(*(1 for _ in range(prepended)), *sizes),
                tensor=tensor[begin : begin + math.prod(sizes)],
                is_written=not any(piece.replica_id[:-1]),
            )
