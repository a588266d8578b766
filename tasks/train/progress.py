"""Tells where this rank is: a write to shared memory with each phase, about a microsecond, no system call.

The record's layout, and who reads it: :mod:`configs.progress`.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path

from configs.progress import MAGIC, PHASES, PROGRESS_VARIABLE, RECORD, VERSION, record_path

_CODES = {phase: code for code, phase in enumerate(PHASES)}
_pack_into = RECORD.pack_into
_now = time.time


class Progress:
    """This rank's record. Without a folder it is kept where nobody reads it."""

    def __init__(self, memory: mmap.mmap | bytearray, rank: int) -> None:
        self._memory = memory
        self._rank = rank
        self._pid = os.getpid()
        self._step = 0
        self._writes = 0
        self.enter("start")

    @classmethod
    def open(cls, rank: int, environment: Mapping[str, str] = os.environ) -> Progress:
        """The record of `rank` in the folder that the launcher's agent named, if it did."""
        folder = environment.get(PROGRESS_VARIABLE)
        if not folder:
            return cls(bytearray(RECORD.size), rank)
        return cls(_map(record_path(Path(folder), rank)), rank)

    def begin_step(self, step: int) -> None:
        """The rank begins to work on `step`."""
        self._step = step
        self.enter("data")

    def enter(self, phase: str) -> None:
        """The rank enters a phase of its step, one of configs.progress.PHASES."""
        self._writes += 1
        _pack_into(
            self._memory,
            0,
            MAGIC,
            VERSION,
            self._rank,
            self._pid,
            self._step,
            _CODES[phase],
            _now(),
            self._writes,
        )


def _map(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, RECORD.size)
        return mmap.mmap(descriptor, RECORD.size)
    finally:
        os.close(descriptor)
