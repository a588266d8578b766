"""The benchmark's slow storage, and processes that each read the model from it before they begin."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from configs.errors import RunFailedError
from tasks.evaluate.model_folder import model_files

_BLOCK_BYTES = 1 << 20
_LOG_TAIL_CHARACTERS = 3000


class Storage:
    """A model's folder behind a link of so many bytes a second, which all who read at a time share.

    What was read is in the node's memory then, so a process that loads the folder after that reads it
    as fast as from a staged copy.
    """

    def __init__(self, model_dir: Path, bytes_per_s: float) -> None:
        self._files = [model_dir / name for name in model_files(model_dir)]
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._files)

    def read(self) -> None:
        """Read the whole model."""
        for path in self._files:
            with open(path, "rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    time.sleep(max(0.0, self._sent_at(len(block)) - time.monotonic()))

    def _sent_at(self, size_bytes: int) -> float:
        """When the link has sent the block; readers' blocks take turns."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size_bytes / self.bytes_per_s
            return self._free_at


@dataclass(frozen=True)
class Job:
    """A process that needs the model."""

    name: str
    argv: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    folder: Path


@dataclass(frozen=True)
class JobTimes:
    """When it was where, by the wall clock."""

    name: str
    began_at: float
    read_at: float
    """The model was read, and the process was started."""
    ended_at: float

    @property
    def process_s(self) -> float:
        return self.ended_at - self.read_at


def run_jobs(jobs: Sequence[Job], storage: Storage, slots: int) -> list[JobTimes]:
    """Run them in their order, so many at a time; each reads the model first."""

    def run(job: Job) -> JobTimes:
        began_at = time.time()
        storage.read()
        read_at = time.time()
        run_process(job)
        return JobTimes(job.name, began_at, read_at, time.time())

    with ThreadPoolExecutor(slots) as pool:
        try:
            return list(pool.map(run, jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def run_process(job: Job) -> None:
    """Run it to its end; RunFailedError with its last words when it fails."""
    with open(job.log, "wb") as log:
        done = subprocess.run(
            job.argv,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(job.environment),
            cwd=job.folder,
            check=False,
        )
    if done.returncode != 0:
        words = job.log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]
        raise RunFailedError(f"{job.name} failed with exit code {done.returncode}:\n{words}")
