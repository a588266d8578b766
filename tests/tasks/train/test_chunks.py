"""Cutting state into chunks: every element once, shares that are alike."""

from __future__ import annotations

import math
import random

import pytest
import torch

from configs.errors import CheckpointError
from configs.records import FileRecord
from tasks.train.checkpoint_format import Part, WrittenChunk
from tasks.train.chunks import Chunk, assign_owners, held_by, rectangles
from tasks.train.persist import index_of

SHAPES = [(7,), (5, 3), (4, 1), (1, 6), (3, 4, 5), (2, 3, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_rectangles_cover_a_flat_range_exactly_and_in_order(shape: tuple[int, ...]) -> None:
    numbers = torch.arange(math.prod(shape)).view(shape)
    for start in range(numbers.numel() + 1):
        for end in range(start, numbers.numel() + 1):
            found: list[int] = []
            for flat, offsets, sizes in rectangles(start, end, shape):
                block = numbers[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
                values = block.flatten().tolist()
                assert values[0] == flat
                found += values
            assert found == list(range(start, end))


def test_a_range_of_a_matrix_is_at_most_three_rectangles() -> None:
    assert len(list(rectangles(5, 47, (10, 6)))) == 3
    assert len(list(rectangles(6, 48, (10, 6)))) == 1
    assert list(rectangles(7, 9, (10, 6))) == [(7, (1, 1), (1, 2))]


def test_replicated_chunks_are_shared_out_evenly_and_alike_on_all_ranks() -> None:
    sizes = [random.Random(3).randrange(1, 500) for _ in range(200)]
    chunks = [chunk(f"w{i}", size, owner=0) for i, size in enumerate(sizes)]
    own = chunk("random_state", 10, owner=None)
    shared = assign_owners([*chunks, own], 4)
    shares = [sum(c.size_bytes for c in held_by(shared, rank)) for rank in range(4)]
    assert sum(shares) == 4 * (sum(sizes) + 4 * 10)
    assert max(shares) - min(shares) <= 4 * 500
    as_another_rank = [chunk(c.key, c.tensor.numel(), owner=3) for c in chunks]
    assert [c.owner for c in assign_owners([*as_another_rank, own], 4)] == [c.owner for c in shared]
    assert all(own in held_by(shared, rank) for rank in range(4))


def test_the_index_refuses_what_does_not_make_whole_tensors() -> None:
    whole = [part(0, (0, 0), (2, 3)), part(1, (2, 0), (2, 3))]
    index = index_of(whole)
    assert len(index.state_dict_metadata["w"].chunks) == 2  # type: ignore[union-attr]
    with pytest.raises(CheckpointError, match="wrote 6 elements of w instead of 12"):
        index_of(whole[:1])
    with pytest.raises(CheckpointError, match="wrote 18 elements of w instead of 12"):
        index_of([*whole, whole[0]])
    other_shape = part(1, (2, 0), (2, 3), global_shape=(5, 3))
    with pytest.raises(CheckpointError, match="do not agree on the shape of w"):
        index_of([whole[0], other_shape])


def chunk(key: str, numel: int, owner: int | None) -> Chunk:
    return Chunk(key, (numel,), (0,), (numel,), torch.zeros(numel), owner)


def part(
    rank: int,
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    global_shape: tuple[int, ...] = (4, 3),
) -> Part:
    written = WrittenChunk(
        key="w",
        dtype="float32",
        global_shape=global_shape,
        offsets=offsets,
        sizes=sizes,
        place=0,
        length_bytes=10,
    )
    record = FileRecord(size_bytes=10, sha256="")
    return Part(save_id="1", rank=rank, file=f"__{rank}_0.distcp", record=record, chunks=[written])
