"""Saves checkpoints: committed or not there at all.

    checkpoints/step_00000200/
      __0_0.distcp ...   tensors, one file a rank
      .metadata          torch's index of them
      common.pt          values that all ranks share
      metadata.json      megatron-core's name of the format
      COMMITTED.json     size and hash of each file; written last

Planning and writing are apart. Each rank writes its own files with a time limit of its own, and then
all ranks agree; a rank that could not write (disk full, storage stuck) costs this checkpoint, on all
ranks alike, and never the run. megatron-core's own `save` would leave the others waiting for it.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from configs.errors import CheckpointError
from configs.files import sha256_of_file, sync_directory, sync_file
from configs.records import CommitMarker, FileRecord
from configs.rundir import COMMIT_MARKER_NAME, CheckpointDir, write_record
from tasks.train.distributed import World
from tasks.train.mcore import (
    CheckpointingConfig,
    determine_main_replica_uniform_distribution,
    distribute_main_replicas_with_precomputed_distribution,
    parallel_state,
    save_config,
    save_preprocess,
    torch_strategy,
    without_megatron_warnings,
)
from tasks.train.state import ShardedState

logger = logging.getLogger(__name__)

METADATA_FILE = ".metadata"
COMMON_FILE = "common.pt"
FORMAT_FILE = "metadata.json"

BeforeWrite = Callable[[Path], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class SaveOutcome:
    """How a save ended, the same on all ranks."""

    size_bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class _Plan:
    """What this rank writes; `metadata` and `common` are rank 0's to write."""

    writer: FileSystemWriter
    planner: Any
    local: SavePlan
    metadata: Metadata | None
    common: dict[str, Any]


@dataclass(frozen=True)
class _Written:
    """What one rank wrote, or why it could not."""

    results: list[WriteResult]
    files: dict[str, FileRecord]
    error: str = ""


class Saver:
    """Saves the sharded training state of all ranks."""

    def __init__(self, world: World, *, timeout_s: float) -> None:
        self._world = world
        self._timeout_s = timeout_s
        self._validated = False

    def save(
        self,
        checkpoint: CheckpointDir,
        state: ShardedState,
        marker: CommitMarker,
        before_write: BeforeWrite,
    ) -> SaveOutcome:
        """Save and commit, or leave nothing. Every rank calls it; every rank gets the same outcome.

        `marker` lacks only what the save finds out: files, time and duration.
        """
        started = time.monotonic()
        outcome = self._prepare_folder(checkpoint.path)
        if not outcome.error:
            plan = self._plan(checkpoint.path, state)
            written = self._write(checkpoint.path, plan, before_write)
            outcome = self._finish(checkpoint.path, plan, written, marker, started)
        if outcome.error and self._world.is_main:
            shutil.rmtree(checkpoint.path, ignore_errors=True)
        return outcome

    def _prepare_folder(self, folder: Path) -> SaveOutcome:
        """Make an empty folder, whatever an earlier attempt left there."""
        error = ""
        if self._world.is_main:
            try:
                if folder.exists():
                    logger.warning("removing what an earlier save left in %s", folder)
                    shutil.rmtree(folder)
                folder.mkdir(parents=True)
                sync_directory(folder.parent)
            except OSError as failure:
                error = _describe(failure)
        return self._decided(SaveOutcome(error=error))

    @without_megatron_warnings()
    def _plan(self, folder: Path, state: ShardedState) -> _Plan:
        """Agree who writes which tensors; nothing is written yet."""
        sharded, common = save_preprocess(state, validate_access_integrity=not self._validated)
        self._validated = True
        group = parallel_state.get_data_parallel_group()
        distribute_main_replicas_with_precomputed_distribution(
            sharded, group, determine_main_replica_uniform_distribution(sharded, group)
        )
        by_key, _, _ = torch_strategy._replace_state_dict_keys_with_sharded_keys(sharded, True)
        tensors = torch_strategy.mcore_to_pyt_state_dict(by_key, False)

        planner = torch_strategy.MCoreSavePlanner(flatten_state_dict=False)
        planner.set_up_planner(tensors, is_coordinator=self._world.is_main)
        writer = FileSystemWriter(folder)
        writer.set_up_storage_writer(self._world.is_main)
        mine = writer.prepare_local_plan(planner.create_local_plan())
        local, metadata = self._global_plan(writer, planner, mine)
        return _Plan(writer, planner, planner.finish_plan(local), metadata, common)

    def _global_plan(
        self, writer: FileSystemWriter, planner: Any, mine: SavePlan
    ) -> tuple[SavePlan, Metadata | None]:
        """Exchange plans through rank 0, which alone gets the index of all tensors."""
        gathered = self._gather(mine)
        metadata, shares = None, None
        if gathered is not None:
            plans, metadata = planner.create_global_plan(gathered)
            shares = writer.prepare_global_plan(plans)
        share: list[Any] = [None]
        dist.scatter_object_list(share, shares, src=0, group=self._world.control)
        return share[0], metadata

    def _write(self, folder: Path, plan: _Plan, before_write: BeforeWrite) -> _Written:
        """Write, sync and hash this rank's tensor files, within the time limit."""

        def write() -> _Written:
            before_write(folder / f"__{self._world.rank}_0.distcp")
            results = plan.writer.write_data(plan.local, plan.planner).wait()
            names = sorted({result.storage_data.relative_path for result in results})
            return _Written(results, {name: _durable(folder / name) for name in names})

        try:
            return within_time_limit(write, self._timeout_s)
        except Exception as failure:
            logger.warning("this rank could not write its part of %s", folder, exc_info=True)
            return _Written([], {}, f"rank {self._world.rank}: {_describe(failure)}")

    def _finish(
        self, folder: Path, plan: _Plan, written: _Written, marker: CommitMarker, started: float
    ) -> SaveOutcome:
        """Rank 0 commits when all ranks have written; all learn how it ended."""
        outcome = SaveOutcome()
        parts = self._gather(written)
        if parts is not None:
            errors = [part.error for part in parts if part.error]
            if errors:
                outcome = SaveOutcome(error="; ".join(errors))
            else:
                outcome = self._commit(folder, plan, parts, marker, started)
        return self._decided(outcome)

    def _commit(
        self,
        folder: Path,
        plan: _Plan,
        parts: list[_Written],
        marker: CommitMarker,
        started: float,
    ) -> SaveOutcome:
        files = {name: record for part in parts for name, record in part.files.items()}

        def commit() -> CommitMarker:
            torch.save(plan.common, folder / COMMON_FILE)
            save_config(CheckpointingConfig("torch_dist", 1), str(folder))
            assert plan.metadata is not None
            plan.writer.finish(plan.metadata, [part.results for part in parts])
            for name in (COMMON_FILE, FORMAT_FILE, METADATA_FILE):
                files[name] = _durable(folder / name)
            sync_directory(folder)
            whole = marker.model_copy(
                update={
                    "files": files,
                    "committed_at": time.time(),
                    "duration_s": time.monotonic() - started,
                }
            )
            write_record(folder / COMMIT_MARKER_NAME, whole)
            return whole

        try:
            return SaveOutcome(size_bytes=within_time_limit(commit, self._timeout_s).size_bytes)
        except Exception as failure:
            logger.warning("could not commit %s", folder, exc_info=True)
            return SaveOutcome(error=f"rank 0: {_describe(failure)}")

    def _gather(self, value: Result) -> list[Result] | None:
        """Everyone's value, on rank 0; None elsewhere."""
        gathered: list[Any] | None = [None] * self._world.size if self._world.is_main else None
        dist.gather_object(value, gathered, dst=0, group=self._world.control)
        return gathered

    def _decided(self, outcome: SaveOutcome) -> SaveOutcome:
        """Rank 0's outcome, on all ranks."""
        decision: list[Any] = [outcome]
        dist.broadcast_object_list(decision, src=0, group=self._world.control)
        return decision[0]  # type: ignore[no-any-return]


def within_time_limit(work: Callable[[], Result], timeout_s: float) -> Result:
    """Run `work` in a thread; raise CheckpointError when it takes longer, and leave it behind.

    A write into stuck storage cannot be interrupted. The thread is left to it: the file that it
    writes is removed, and the process does not wait for it when it ends.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="checkpoint-write", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise CheckpointError(f"not written within checkpoint.save_timeout_s = {timeout_s:g} s")
    if failures:
        raise failures[0]
    return results[0]


def _durable(path: Path) -> FileRecord:
    """Sync a written file and describe it."""
    sync_file(path)
    return FileRecord(size_bytes=path.stat().st_size, sha256=sha256_of_file(path))


def _describe(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}"
