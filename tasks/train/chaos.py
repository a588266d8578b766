"""What `overland chaos` asks of the training stage: whether two runs ended the same, how far a save has
come, and what a run still held when it was struck.

Checkpoints of two runs are compared by their tensors. Their files may differ: which rank owns a tensor
is fixed, but a save names its attempt, and a file's hash would tell that too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from configs.errors import CheckpointError
from configs.rundir import CheckpointDir, RunDir
from tasks.train.checkpoint_files import check_files
from tasks.train.checkpoint_format import COMMON_FILE, METADATA_FILE, SAVING_FILE, part_file
from tasks.train.checkpoint_read import CheckpointReader
from tasks.train.node_memory import common_steps, give_back, held_snapshots
from tasks.train.pickles import check_torch_file


@dataclass(frozen=True)
class OpenSave:
    """How far a save has come that is not committed yet."""

    parts: int
    """Ranks that have left their part."""
    has_index: bool
    """Whether the index over all parts is there, which is all but the commit."""


def digest_of_checkpoint(run: RunDir, step: int) -> str:
    """SHA-256 over all that a committed checkpoint holds, bit for bit: weights, optimizer state, random
    state, and the values beside them. Raises CheckpointError where there is none, or a damaged one."""
    checkpoint = run.checkpoint(step)
    marker = checkpoint.marker()
    if marker is None:
        raise CheckpointError(f"{checkpoint.path} is not committed")
    digest = hashlib.sha256()
    reader = CheckpointReader(checkpoint.path, marker)
    for name in reader.names:
        _add(digest, name, reader.read(name))
    check_files(checkpoint.path, marker, [COMMON_FILE])
    check_torch_file(checkpoint.path / COMMON_FILE)
    # Checked above: it imports nothing but what a checkpoint needs.
    common = torch.load(checkpoint.path / COMMON_FILE, map_location="cpu", weights_only=False)
    _add(digest, "common", common)
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    """Add a value, whatever it is made of, under its name."""
    if isinstance(value, torch.Tensor):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            _add(digest, f"{name}.{key}", value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"{name} [{len(value)}]\n".encode())
        for place, item in enumerate(value):
            _add(digest, f"{name}[{place}]", item)
    elif value is None or isinstance(value, bool | int | float | str):
        digest.update(f"{name} {value!r}\n".encode())
    else:
        raise CheckpointError(f"{name} is a {type(value).__name__}, which cannot be compared")


def open_save(checkpoint: CheckpointDir, ranks: int) -> OpenSave | None:
    """The save that is under way in a checkpoint's folder; None where none is."""
    path = checkpoint.path
    if not (path / SAVING_FILE).exists() or checkpoint.is_committed():
        return None
    parts = sum(part_file(path, rank).exists() for rank in range(ranks))
    return OpenSave(parts, has_index=(path / METADATA_FILE).exists())


def held_step(run: RunDir, ranks: int) -> int:
    """The newest step that a committed checkpoint, or a snapshot that every rank has in this node's
    memory, holds right now; 0 where there is none. Takes about a millisecond."""
    in_storage = max((checkpoint.step for checkpoint in run.committed_checkpoints()), default=0)
    return max(in_storage, snapshot_step(run, ranks))


def snapshot_step(run: RunDir, ranks: int) -> int:
    """The newest step that every rank has a snapshot of; 0 where there is none."""
    held = [{s.step: s.token for s in held_snapshots(run, rank)} for rank in range(ranks)]
    return max(common_steps(held), default=0)


def give_memory_back(run: RunDir) -> bool:
    """Remove what a run has left in this node's memory; returns whether there was anything."""
    return give_back(run.path)
