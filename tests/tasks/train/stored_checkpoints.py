"""Small checkpoints, committed in a run directory, with files of any content; also in storage."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from configs.records import CommitMarker, FileRecord
from configs.rundir import COMMIT_MARKER_NAME, CheckpointDir, RunDir, write_record
from tasks.train.storage import open_storage

ROOT = Path(__file__).parents[3]


def marker_for(
    step: int, files: Mapping[str, bytes], *, attempt: int = 1, storage: str | None = None
) -> CommitMarker:
    return CommitMarker(
        step=step,
        consumed_samples=0,
        model_fingerprint="",
        padded_vocab_size=0,
        files={
            name: FileRecord(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in files.items()
        },
        attempt=attempt,
        parallel={},
        storage=storage,
        committed_at=time.time(),
        duration_s=0.0,
    )


def commit(
    run: RunDir,
    step: int,
    *,
    attempt: int = 1,
    storage: str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> CheckpointDir:
    """Commit a checkpoint; its files go to `storage`, if given."""
    checkpoint = run.checkpoint(step)
    checkpoint.path.mkdir(parents=True, exist_ok=True)
    if files is None:
        draw = random.Random(step)
        files = {name: draw.randbytes(1000) for name in (".metadata", "__0_0.distcp", "common.pt")}
    place = open_storage(storage, checkpoint.path)
    for name, content in files.items():
        with place.write(name) as file:
            file.write(content)
    marker = marker_for(step, files, attempt=attempt, storage=storage)
    write_record(checkpoint.path / COMMIT_MARKER_NAME, marker)
    return checkpoint


def start_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process with the repository's modules, that can be read from and written to."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    found = process.stdout.readline().strip()
    assert found == line, found


def end(process: subprocess.Popen[str]) -> None:
    """Kill it, and leave no open pipe."""
    process.kill()
    process.communicate()
