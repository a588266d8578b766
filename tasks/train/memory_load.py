"""Restarts from the snapshot that every rank still has in its node's memory.

A rank holds its share of the chunks; what data-parallel ranks have in common is sent on by its owner.
"""

from __future__ import annotations

import logging
import uuid

import torch
import torch.distributed as dist

from configs.checkpoint_schema import CheckpointConfig
from configs.errors import CheckpointError, ConfigError
from configs.files import write_text
from configs.lineage import Lineage
from configs.memory import GIB, gib_up, readable
from configs.rundir import AttemptDir, RunDir
from tasks.train import node_memory
from tasks.train.buffers import Buffer, Layout, SnapshotBuffers
from tasks.train.chunks import Chunk, held_by
from tasks.train.distributed import World
from tasks.train.mcore import parallel_state
from tasks.train.snapshot import RANDOM_STATE
from tasks.train.state import TrainingState, set_optimizer_step, set_random_state

logger = logging.getLogger(__name__)


def open_buffers(
    settings: CheckpointConfig, run: RunDir, world: World, chunks: list[Chunk]
) -> SnapshotBuffers:
    """This rank's snapshot buffers: in /dev/shm where they fit on all nodes, else anonymous.

    ConfigError when they fit nowhere, with the numbers that would.
    """
    layout = Layout.of(held_by(chunks, world.data_rank))
    mine = node_memory.rank_folder(run.path, world.rank)
    used = node_memory.used_bytes(mine)
    needed = layout.size_bytes * settings.buffers
    gathered: list[tuple[str, int, int, int]] = [("", 0, 0, 0)] * world.size
    dist.all_gather_object(
        gathered, (world.node, needed, used, node_memory.free_bytes()), group=world.control
    )
    nodes = {node for node, *_ in gathered}
    is_persistent = settings.memory != "off"
    for node in sorted(nodes):
        of_node = [entry for entry in gathered if entry[0] == node]
        total = sum(entry[1] for entry in of_node)
        free = sum(entry[2] for entry in of_node) + min(entry[3] for entry in of_node)
        _check_limit(settings, node, total)
        if is_persistent and total > free:
            is_persistent = _does_not_fit(settings, node, total, free, world)
    if is_persistent and world.local_rank == 0:
        node_memory.remove_leftovers(keep=node_memory.run_folder(run.path))
    if world.is_main:
        where = "in /dev/shm" if is_persistent else "in anonymous memory: none outlives its process"
        size = readable(needed)
        logger.info("%d snapshot buffers of rank 0 take %s %s", settings.buffers, size, where)
    if not is_persistent:
        return SnapshotBuffers(None, layout, settings.buffers)
    try:
        return SnapshotBuffers(mine, layout, settings.buffers)
    except OSError as error:
        problem = f"the snapshot buffers cannot be kept in {mine}: {error}"
        if settings.memory == "on":
            raise ConfigError(f"{problem}; remove it, or set checkpoint.memory=auto") from error
        logger.warning("%s: after a crash, training restarts from storage", problem)
        return SnapshotBuffers(None, layout, settings.buffers)


def _check_limit(settings: CheckpointConfig, node: str, total: int) -> None:
    limit = settings.memory_limit_gib
    if limit is None or total <= limit * GIB:
        return
    half = total // settings.buffers
    fits = " or checkpoint.buffers=1" if settings.buffers > 1 and half <= limit * GIB else ""
    raise ConfigError(
        f"the snapshot buffers take {readable(total)} on {node}, more than "
        f"checkpoint.memory_limit_gib = {limit:g}: a limit of {gib_up(total):g}{fits} would fit"
    )


def _does_not_fit(
    settings: CheckpointConfig, node: str, total: int, free: int, world: World
) -> bool:
    problem = f"the snapshot buffers take {readable(total)}, but /dev/shm on {node} has {readable(free)} free"
    if settings.memory == "on":
        raise ConfigError(
            f"{problem}: make it larger, or set checkpoint.buffers=1 or checkpoint.memory=auto"
        )
    if world.is_main:
        logger.warning("%s: after a crash, training restarts from storage", problem)
    return False


def new_token(attempt: AttemptDir, world: World) -> str:
    """Mark this attempt's snapshots, so that those of another run of the same name are not taken."""

    def make() -> str:
        token = uuid.uuid4().hex
        write_text(attempt.token_path, token)
        return token

    return world.from_main(make)


def newest_common_step(
    run: RunDir, buffers: SnapshotBuffers, world: World, lineage: Lineage
) -> int | None:
    """The latest step whose snapshot every rank still holds, and no rollback has made void."""
    held = [b.snapshot for b in buffers.snapshots().values() if b.snapshot is not None]
    mine = {
        snapshot.step: snapshot.token
        for snapshot in held
        if snapshot.is_of(run) and not lineage.is_void(attempt=snapshot.attempt, step=snapshot.step)
    }
    gathered: list[dict[int, str]] = [{}] * world.size
    dist.all_gather_object(gathered, mine, group=world.control)
    common = sorted(node_memory.common_steps(gathered), reverse=True)
    return next((s for s in common if _is_intact(buffers, s, world)), None)


def _is_intact(buffers: SnapshotBuffers, step: int, world: World) -> bool:
    """Whether every rank's snapshot of the step is still what was copied."""
    intact: list[bool] = [False] * world.size
    dist.all_gather_object(intact, buffers.snapshots()[step].is_intact, group=world.control)
    if not all(intact):
        damaged = [rank for rank, is_intact in enumerate(intact) if not is_intact]
        logger.warning("the snapshot of step %d is damaged on ranks %s: not used", step, damaged)
    return all(intact)


def load_from_memory(
    state: TrainingState, buffers: SnapshotBuffers, chunks: list[Chunk], step: int
) -> None:
    """Put the snapshot of `step` back into the live state; every rank calls it."""
    buffer = buffers.snapshots()[step]
    snapshot = buffer.snapshot
    assert snapshot is not None
    _copy_back(buffer, buffers.layout)
    group = parallel_state.get_data_parallel_group()
    for chunk in chunks:
        if chunk.owner is not None and dist.get_world_size(group) > 1:
            source = dist.get_global_rank(group, chunk.owner)
            if not chunk.tensor.is_contiguous():
                raise CheckpointError(f"{chunk.key} cannot be sent from rank to rank")
            # As bytes: not every backend sends bfloat16.
            dist.broadcast(chunk.tensor.view(-1).view(torch.uint8), src=source, group=group)
    set_optimizer_step(state.optimizer, snapshot.optimizer_step)
    state.schedule.load_state_dict(dict(snapshot.schedule))
    state.step = snapshot.step
    state.consumed_samples = snapshot.consumed_samples


def _copy_back(buffer: Buffer, layout: Layout) -> None:
    for chunk, place in zip(layout.chunks, layout.places, strict=True):
        kept = buffer.view(chunk, place)
        if chunk.key == RANDOM_STATE:
            set_random_state(kept)
        chunk.tensor.copy_(kept)
