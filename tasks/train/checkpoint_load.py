"""Finds the newest state to go on from, and loads it.

A checkpoint counts only when it is committed, every file has the recorded size and hash, and its
pickles import nothing unexpected. One that does not is passed over for the one before, with the
reason. The files are checked by all ranks together; rank 0 decides, so that all load the same one.
"""

from __future__ import annotations

import logging
import pickle
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from configs.errors import CheckpointError
from configs.lineage import Lineage
from configs.records import CommitMarker
from configs.rundir import (
    COMMIT_MARKER_NAME,
    CheckpointDir,
    RunDir,
    step_folder_name,
    step_of_folder,
)
from tasks.train.buffers import SnapshotBuffers
from tasks.train.checkpoint_files import check_files
from tasks.train.checkpoint_format import COMMON_FILE, FORMAT_FILE, METADATA_FILE
from tasks.train.chunks import Chunk
from tasks.train.distributed import World
from tasks.train.in_use import in_use
from tasks.train.mcore import dist_checkpointing, without_megatron_warnings
from tasks.train.memory_load import load_from_memory, newest_common_step
from tasks.train.pickles import check_pickle, check_torch_file
from tasks.train.staging import staged
from tasks.train.state import DISTRIBUTED_OPTIMIZER, TrainingState, restore, sharded_state

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumption:
    """What training starts from: a snapshot in memory, a checkpoint in storage, or nothing."""

    source: Literal["nothing", "memory", "storage"] = "nothing"
    step: int = 0
    checkpoint: CheckpointDir | None = None
    marker: CommitMarker | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    """Folder name -> why it was passed over."""
    load_time_s: float = 0.0
    is_in_storage: bool = False
    """Whether a committed checkpoint has the same state."""

    def __str__(self) -> str:
        if self.source == "memory":
            return f"the snapshot of step {self.step} in memory"
        return f"checkpoint {step_folder_name(self.step)}" if self.step else "the start"


def resume(
    run: RunDir,
    state: TrainingState,
    expected: CommitMarker,
    world: World,
    buffers: SnapshotBuffers,
    chunks: list[Chunk],
    lineage: Lineage,
) -> Resumption:
    """Load the newest state that all ranks can have into `state`, if there is one.

    `expected` is the marker that this run would write; a checkpoint of another model is refused.
    `lineage`, the same on all ranks, tells what a rollback has made void.
    """
    started = time.monotonic()
    in_memory = newest_common_step(run, buffers, world, lineage)
    skipped: dict[str, str] = {}
    is_in_storage = False
    for checkpoint in world.from_main(lambda: _candidates(run)):
        if in_memory is not None and checkpoint.step <= in_memory:
            same_step = checkpoint.step == in_memory
            is_in_storage = same_step and _usable_marker(checkpoint, world, lineage)[0] is not None
            break
        marker, problem = _usable_marker(checkpoint, world, lineage)
        if marker is not None:
            require_same_model(checkpoint.path, marker, expected)
            require_same_optimizer(checkpoint.path, marker, expected)
            problem = _load(checkpoint, marker, state, expected, world)
        if not problem:
            load_time_s = time.monotonic() - started
            return Resumption(
                "storage", state.step, checkpoint, marker, skipped, load_time_s, is_in_storage=True
            )
        logger.warning("checkpoint %s was passed over: %s", checkpoint.path.name, problem)
        skipped[checkpoint.path.name] = problem
    if in_memory is None:
        return Resumption(skipped=skipped)
    load_from_memory(state, buffers, chunks, in_memory)
    load_time_s = time.monotonic() - started
    return Resumption(
        "memory",
        in_memory,
        skipped=skipped,
        load_time_s=load_time_s,
        is_in_storage=is_in_storage,
    )


def _usable_marker(
    checkpoint: CheckpointDir, world: World, lineage: Lineage
) -> tuple[CommitMarker | None, str]:
    """The marker on all ranks, or why the checkpoint is not to be looked at."""
    marker, has_one = world.from_main(lambda: (checkpoint.marker(), checkpoint.is_committed()))
    if marker is None:
        return None, f"its {COMMIT_MARKER_NAME} is damaged" if has_one else "it was never committed"
    if lineage.is_void(attempt=marker.attempt, step=marker.step):
        return None, "a rollback has made it void"
    return marker, ""


def check_contents(folder: Path, marker: CommitMarker) -> None:
    """Raise CheckpointError when loading the checkpoint could run code, or cannot work."""
    for name in (COMMON_FILE, FORMAT_FILE, METADATA_FILE):
        if name not in marker.files:
            raise CheckpointError(f"{name} is not among the committed files")
    index = (folder / METADATA_FILE).read_bytes()
    check_pickle(index, METADATA_FILE)
    check_torch_file(folder / COMMON_FILE)
    tensors = pickle.loads(index).state_dict_metadata  # noqa: S301  (checked above)
    objects = [name for name, kind in tensors.items() if isinstance(kind, BytesStorageMetadata)]
    if objects:
        raise CheckpointError(f"it holds pickled objects beside tensors: {objects[0]}")


def _problem(folder: Path, marker: CommitMarker, world: World) -> str:
    """Why the checkpoint cannot be used; empty when it can. Each rank checks its share of the files."""
    mine = sorted(marker.files)[world.rank :: world.size]
    # What came from storage was checked on its way.
    found = ""
    if marker.storage is None:
        found = _problem_of_any(_message_of(check_files, folder, marker, mine), world=world)
    return found or world.from_main(lambda: _message_of(check_contents, folder, marker))


def _message_of(check: Any, *arguments: Any) -> str:
    try:
        check(*arguments)
    except (CheckpointError, OSError) as error:
        return str(error)
    return ""


def _candidates(run: RunDir) -> list[CheckpointDir]:
    """All checkpoint folders, committed or not, newest first."""
    folders = run.checkpoints_dir.iterdir() if run.checkpoints_dir.is_dir() else iter(())
    steps = sorted((step for f in folders if (step := step_of_folder(f)) is not None), reverse=True)
    return [run.checkpoint(step) for step in steps]


def require_same_model(folder: Path, marker: CommitMarker, expected: CommitMarker) -> None:
    if marker.model_fingerprint == expected.model_fingerprint:
        return
    raise CheckpointError(
        f"{folder} belongs to another model: {'; '.join(_differences(marker, expected))}. "
        "Use another run directory, or the config that this one was begun with"
    )


def require_same_optimizer(folder: Path, marker: CommitMarker, expected: CommitMarker) -> None:
    """The optimizer's state is laid out by precision and by whether it is sharded over ranks."""
    sharded = marker.parallel.get(DISTRIBUTED_OPTIMIZER, 0)
    if sharded != expected.parallel[DISTRIBUTED_OPTIMIZER]:
        setting = f"parallel.distributed_optimizer = {str(bool(sharded)).lower()}"
    elif marker.precision != expected.precision:
        setting = f"train.precision = {marker.precision}"
    else:
        return
    raise CheckpointError(
        f"{folder} was saved with {setting} and can be resumed only with the same; "
        "the tensor, pipeline and data parallel sizes may change"
    )


def _differences(marker: CommitMarker, expected: CommitMarker) -> list[str]:
    found = [
        f"model.{name} is {marker.model.get(name)} there and {value} here"
        for name, value in expected.model.items()
        if marker.model.get(name) != value
    ]
    if marker.padded_vocab_size != expected.padded_vocab_size:
        found.append(
            f"the vocabulary has {marker.padded_vocab_size} rows there and "
            f"{expected.padded_vocab_size} here"
        )
    if marker.tokenizer_sha256 != expected.tokenizer_sha256:
        found.append("its tokenizer is another one")
    return found or ["its fingerprint is another one"]


def _load(
    checkpoint: CheckpointDir,
    marker: CommitMarker,
    state: TrainingState,
    expected: CommitMarker,
    world: World,
) -> str:
    """Load a checkpoint that is whole; else the reason, the same on all ranks."""
    agree = partial(_problem_of_any, world=world)
    with ExitStack() as held:
        # A rank that cannot go on must tell the others, before they wait for it.
        if problem := agree(_message_of(held.enter_context, in_use(checkpoint))):
            return problem
        try:
            folder = held.enter_context(
                staged(checkpoint, marker, rank=world.rank, size=world.size, agree=agree)
            )
        except CheckpointError as error:  # on all ranks alike
            return str(error)
        problem = _problem(folder, marker, world)
        if not problem:
            _restore(folder, state, same_layout=marker.parallel == expected.parallel)
        # Nobody gives up the files while others read them.
        dist.barrier(group=world.control)
        return problem


@without_megatron_warnings()
def _restore(folder: Path, state: TrainingState, *, same_layout: bool) -> None:
    # Random states belong to the layout that they were saved under; nothing draws from them after
    # the weights are made, so another layout starts with fresh ones.
    template = sharded_state(state, is_loading=True, with_random_state=same_layout)
    restore(state, dist_checkpointing.load(template, str(folder)))


def _problem_of_any(problem: str, *, world: World) -> str:
    """What went wrong on some rank; empty when all went well everywhere."""
    problems: list[str] = [""] * world.size
    dist.all_gather_object(problems, problem, group=world.control)
    return "; ".join(filter(None, problems))
