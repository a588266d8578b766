"""Reads single tensors out of a committed checkpoint, in one process without megatron-core.

Whatever parallel sizes wrote it, a tensor is put together from the parts in the ranks' files. Of the
tensors that all layers have, stacked in one, a single layer is read: memory stays small, and neither
optimizer state nor a process group is needed. No byte is used before its file's hash is checked.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from configs.errors import CheckpointError
from configs.records import CommitMarker
from tasks.train.checkpoint_files import check_files
from tasks.train.checkpoint_format import METADATA_FILE
from tasks.train.pickles import check_pickle


class CheckpointReader:
    """The tensors of one checkpoint, by megatron-core's names.

    A file's hash is checked before the first tensor is read from it.
    """

    def __init__(self, folder: Path, marker: CommitMarker) -> None:
        self._folder = folder
        self._marker = marker
        self._checked: set[str] = set()
        self._reader = FileSystemReader(folder)
        self._check_once(METADATA_FILE)
        check_pickle((folder / METADATA_FILE).read_bytes(), str(folder / METADATA_FILE))
        self._index = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._index, is_coordinator=True)

    @property
    def names(self) -> list[str]:
        """All tensors, by name, in order."""
        entries = self._index.state_dict_metadata.items()
        return sorted(n for n, kind in entries if isinstance(kind, TensorStorageMetadata))

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
        for item in items:
            self._check_once(self._index.storage_data[item.storage_index].relative_path)
        try:
            self._reader.read_data(LoadPlan(items), _IntoOneTensor(tensor)).wait()
        except (OSError, RuntimeError, pickle.UnpicklingError, AssertionError) as error:
            raise CheckpointError(f"{name} cannot be read from {self._folder}: {error}") from error
        return tensor if layer is None else tensor[0]

    def _check_once(self, file: str) -> None:
        if file not in self._checked:
            _check(self._folder, self._marker, [file], contents=True)
            self._checked.add(file)

    def _entry(self, name: str) -> TensorStorageMetadata:
        entry = self._index.state_dict_metadata.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{self._folder} holds no tensor {name}: it is another model's")
        return entry


def _check(folder: Path, marker: CommitMarker, names: Iterable[str], *, contents: bool) -> None:
    try:
        check_files(folder, marker, names, contents=contents)
    except CheckpointError as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from error


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
