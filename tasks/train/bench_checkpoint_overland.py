"""Our own arm of the checkpoint benchmark, and restarts from what it has saved.

python -m tasks.train.bench_checkpoint_overland FOLDER    restarts once, in a process of its own
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from configs.errors import CheckpointError
from configs.files import write_json
from configs.lineage import Lineage
from configs.records import CommitMarker, DataManifest, SplitRecord
from configs.rundir import RunDir
from configs.schema import RunConfig
from tasks.train import distributed
from tasks.train.attempt import build_state, empty_marker
from tasks.train.bench_checkpoint import RESTART_FILE, vocab_size
from tasks.train.bench_checkpoint_verify import digest_of_state
from tasks.train.checkpoint_load import resume
from tasks.train.checkpoint_save import new_checkpointer
from tasks.train.chunks import chunks_of
from tasks.train.distributed import World
from tasks.train.job import log_to
from tasks.train.memory_load import open_buffers
from tasks.train.state import TrainingState


class OverlandArm:
    """The checkpointer of our training loop, called as the loop calls it."""

    name = "overland"

    def __init__(self, run: RunDir, config: RunConfig, state: TrainingState, world: World) -> None:
        self._run = run
        self._checkpointer = new_checkpointer(
            config, run, run.attempt(1), world, state, marker_of(config, world)
        )
        self._saving = 0

    def begin(self, step: int) -> None:
        self._saving = step
        self._checkpointer.begin()

    def before_optimizer(self) -> None:
        self._checkpointer.before_optimizer()

    def poll(self) -> bool:
        for event in self._checkpointer.poll():
            if event.error:
                raise CheckpointError(f"our save of step {event.step} failed: {event.error}")
            if event.step == self._saving:
                return True
        return False

    def folder(self, step: int) -> Path:
        return self._run.checkpoint(step).path

    def close(self) -> None:
        """End the writer; snapshots stay in memory, for the restarts."""
        self._checkpointer.close(remove=False)


def marker_of(config: RunConfig, world: World) -> CommitMarker:
    """The marker of random tokens' checkpoints."""
    split = SplitRecord(prefix="none", documents=0, tokens=0, sha256_bin="", sha256_idx="")
    manifest = DataManifest(
        fingerprint="random",
        sources=[],
        documents_read=0,
        documents_empty=0,
        documents_duplicate=0,
        tokenizer_sha256="none",
        vocab_size=vocab_size(config),
        end_of_text_id=0,
        train=split,
        validation=split,
        bytes_per_token=1.0,
        created_at=0.0,
        duration_s=0.0,
    )
    return empty_marker(config, manifest, 1, world.precision)


def restart(run: RunDir, config: RunConfig) -> dict[str, Any]:
    """Find and load the newest state as a restarted job does: from memory, then without it."""
    world = distributed.start(config)
    state = build_state(config, vocab_size(config), world)
    chunks = chunks_of(state)
    buffers = open_buffers(config.checkpoint, run, world, chunks)
    marker = marker_of(config, world)
    found: dict[str, Any] = {}
    for source in ("memory", "storage"):
        resumption = resume(run, state, marker, world, buffers, chunks, Lineage())
        if resumption.source != source:
            raise CheckpointError(
                f"restarted from {resumption}, not from {source}: {resumption.skipped}"
            )
        digest = asdict(digest_of_state(state))
        found[source] = {"load_s": resumption.load_time_s, "digest": digest}
        for buffer in buffers.all:
            buffer.snapshot = None  # for this process only
    distributed.stop()
    return found


def main() -> int:
    """Restart, and leave what it took in the folder."""
    parser = argparse.ArgumentParser(description="One restart of the checkpoint benchmark.")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    run = RunDir(options.folder)
    log_to(run.attempt(1).rank_log(0))
    config = RunConfig.model_validate_json(run.attempt(1).config_path.read_bytes())
    write_json(run.path / RESTART_FILE, restart(run, config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
