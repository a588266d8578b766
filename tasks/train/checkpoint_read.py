"""Reads single tensors out of a committed checkpoint, in one process without megatron-core.

Whatever parallel sizes wrote it, a tensor is put together from the parts in the ranks' files. Of the
tensors that all layers have, stacked in one, a single layer is read: memory stays small, and neither
optimizer state nor a process group is needed.
"""

from __future__ import annotations

import functools
import pickle
from pathlib import Path

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from configs.errors import CheckpointError
from configs.records import CommitMarker
from configs.rundir import CheckpointDir, RunDir
from tasks.train.pickles import check_pickle

_INDEX_FILE = ".metadata"


def committed_checkpoint(run: RunDir, step: int) -> tuple[CheckpointDir, CommitMarker]:
    """The checkpoint of a step and its marker; CheckpointError when it is not committed or not whole."""
    checkpoint = run.checkpoint(step)
    marker = checkpoint.marker()
    if marker is None:
        there = ", ".join(str(c.step) for c in run.committed_checkpoints()) or "none"
        raise CheckpointError(
            f"{checkpoint.path} is no committed checkpoint: committed steps are {there}"
        )
    for name, record in marker.files.items():
        path = checkpoint.path / name
        size = path.stat().st_size if path.is_file() else None
        if size != record.size_bytes:
            raise CheckpointError(
                f"{path} has {size} bytes instead of {record.size_bytes}: the checkpoint is damaged"
                if size is not None
                else f"{path} is missing: the checkpoint is incomplete"
            )
    return checkpoint, marker


class CheckpointReader:
    """The tensors of one checkpoint, by megatron-core's names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader = FileSystemReader(folder)
        check_pickle((folder / _INDEX_FILE).read_bytes(), str(folder / _INDEX_FILE))
        self._index = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._index, is_coordinator=True)

    def shape(self, name: str) -> tuple[int, ...]:
        """Global shape of a tensor; of a layer's, the number of layers comes first."""
        return tuple(self._entry(name).size)

    def dtype(self, name: str) -> torch.dtype:
        return self._entry(name).properties.dtype

    @functools.lru_cache(maxsize=1)  # noqa: B019  (query, key and value are parts of one tensor)
    def read(self, name: str, layer: int | None = None) -> torch.Tensor:
        """A whole tensor, or one layer of a stacked one."""
        entry = self._entry(name)
        offsets, sizes = [0] * len(entry.size), list(entry.size)
        if layer is not None:
            offsets[0], sizes[0] = layer, 1
        part = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        items = create_read_items_for_chunk_list(name, entry, [part])
        tensor = torch.empty(sizes, dtype=entry.properties.dtype)
        if sum(item.lengths.numel() for item in items) != tensor.numel():
            raise CheckpointError(f"{self._folder} holds only a part of {name}")
        try:
            self._reader.read_data(LoadPlan(items), _IntoOneTensor(tensor)).wait()
        except (OSError, RuntimeError, pickle.UnpicklingError, AssertionError) as error:
            raise CheckpointError(f"{name} cannot be read from {self._folder}: {error}") from error
        return tensor if layer is None else tensor[0]

    def _entry(self, name: str) -> TensorStorageMetadata:
        entry = self._index.state_dict_metadata.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{self._folder} holds no tensor {name}: it is another model's")
        return entry


class _IntoOneTensor(DefaultLoadPlanner):
    """Puts every part that is read to its place in one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        place = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return self._tensor[tuple(slice(start, start + length) for start, length in place)]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing is left to do: the part was copied into its place."""
