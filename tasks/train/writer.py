"""The writer process beside each rank: persists its snapshots while training goes on.

    python -m tasks.train.writer

Started by the rank (tasks/train/writer_process.py), from which it reads a set-up and then requests,
one JSON line each, on standard input; it answers on standard output in the same way. It gives way to
the training (niceness), ignores the signals by which a job is asked to stop (its rank needs it for
the last save) and ends when its rank does.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import queue
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from configs.errors import CheckpointError
from configs.rundir import RunDir, write_record
from configs.schema import RunConfig
from tasks.train import persist
from tasks.train.checkpoint_format import (
    CALLED_OFF,
    SAVING_FILE,
    Part,
    SaveRequest,
    WriterReport,
    part_file,
)
from tasks.train.removal import apply as remove_unneeded
from tasks.train.telling_events import TellingEvents

logger = logging.getLogger("tasks.train.writer")

_NICENESS = 10
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_TELL_INTERVAL_S = 1.0
_LETTING_GO_MS = 1000


class CalledOffError(CheckpointError):
    """The save is not wanted any more."""


class Writer:
    """Serves one rank."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._rank: int = setup["rank"]
        self._ranks: int = setup["ranks"]
        self._table: list[dict[str, Any]] = setup["table"]
        self._memory = [_map(path, setup["size_bytes"]) for path in setup["buffers"]]
        self._run = RunDir(Path(setup["run_dir"]))
        self._config = RunConfig.model_validate(setup["config"])
        self._events = TellingEvents(self._run)
        self._called_off: set[str] = set()

    def call_off(self, save_id: str) -> None:
        """Give up a save, as soon as it is noticed."""
        self._called_off.add(save_id)

    def save(self, request: SaveRequest) -> None:
        """Write this rank's part; rank 0 then commits."""
        if (marker := persist.committed(request)) is not None:
            _report("written", request)
            if self._rank == 0:
                _report("committed", request, size_bytes=marker.size_bytes)
            return
        part = self._write(request)
        self._leave(part, Path(request.folder))
        _report("failed" if part.error else "written", request, error=part.error)
        if self._rank != 0:
            return
        if part.error:
            persist.discard(request)
            _report("not_committed", request, error=f"rank 0: {part.error}")
        else:
            self._commit(request)

    def _write(self, request: SaveRequest) -> Part:
        """This rank's part, or why it could not be written however often it was tried."""
        error = ""
        for attempt in range(request.attempts):
            if attempt > 0:
                time.sleep(min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S))
                logger.warning("trying once more: %d of %d", attempt + 1, request.attempts)
            try:
                return self._write_once(request)
            except CalledOffError as called_off:
                error = str(called_off)
                break
            except Exception as failure:
                # As a warning: the training goes on without it.
                where = f"its part of {request.folder}"
                logger.warning("this rank could not write %s", where, exc_info=True)
                error = f"{type(failure).__name__}: {failure}"
        return Part(save_id=request.save_id, rank=self._rank, error=error)

    def _write_once(self, request: SaveRequest) -> Part:
        folder = Path(request.folder)
        if self._rank == 0:
            persist.open_folder(folder, request.save_id, request.storage)
        else:
            limit_s = request.parts_timeout_s
            persist.await_folder(folder, request.save_id, limit_s, self._check(request))
        return persist.write_part(request, self._table, self._memory[request.buffer], self._rank)

    def _leave(self, part: Part, folder: Path) -> None:
        if part.error and not (folder / SAVING_FILE).exists():
            return  # Rank 0 has given the save up already, and its folder with it.
        with suppress(OSError):  # A full disk: the rank itself knows, and tells rank 0.
            write_record(part_file(folder, self._rank), part)

    def _commit(self, request: SaveRequest) -> None:
        try:
            parts = persist.await_parts(
                Path(request.folder),
                request.save_id,
                self._ranks,
                request.parts_timeout_s,
                self._check(request),
            )
            marker = persist.commit(request, parts)
        except Exception as error:
            logger.warning("could not commit %s", request.folder, exc_info=True)
            persist.discard(request)
            return _report("not_committed", request, error=_sentence(error))
        _report("committed", request, size_bytes=marker.size_bytes)
        try:
            remove_unneeded(self._run, self._config, request.step, events=self._events)
        except Exception:
            # As a warning: it is tried again after the next commit.
            logger.warning("older checkpoints could not be removed", exc_info=True)

    def _check(self, request: SaveRequest) -> persist.StillWanted:
        told_at = time.monotonic()

        def check() -> None:
            nonlocal told_at
            if time.monotonic() - told_at > _TELL_INTERVAL_S:
                told_at = time.monotonic()
                _report("waiting", request)
            if request.save_id in self._called_off:
                raise CalledOffError(CALLED_OFF)

        return check


def main() -> int:
    """Serve until standard input ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    give_way()
    # The whole file has a hash: torch's own checksums would only cost time.
    torch.serialization.set_crc32_options(False)
    torch.set_num_threads(1)
    try:
        serve()
    except Exception:
        if not rank_has_ended():
            raise
        # It could only fail then: no traceback that would be taken for the reason why the rank ended.
        os._exit(0)
    return 0


def serve() -> None:
    """Take the set-up and then requests, for ever; ends the process when the rank has ended."""
    writer = Writer(json.loads(sys.stdin.readline()))
    requests: queue.Queue[SaveRequest] = queue.Queue()
    threading.Thread(target=_listen, args=(writer, requests), daemon=True).start()
    _answer(WriterReport(kind="ready"))
    while True:
        writer.save(requests.get())


def rank_has_ended() -> bool:
    """Whether nobody holds the other end of standard input; a rank that dies lets go of it at once."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)  # a hang-up is told without being asked for
    return any(event & select.POLLHUP for _, event in poll.poll(_LETTING_GO_MS))


def give_way() -> None:
    """Let the training have the processor whenever it wants it."""
    os.nice(_NICENESS)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _listen(writer: Writer, requests: queue.Queue[SaveRequest]) -> None:
    """Take requests in, also while one is being served."""
    for line in sys.stdin:
        if not line.endswith("\n"):
            break  # The rank has ended in the middle of it.
        message = json.loads(line)
        if message["kind"] == "call_off":
            writer.call_off(message["save_id"])
        else:
            requests.put(SaveRequest.model_validate(message))
    os._exit(0)  # The rank has ended, and with it the need for what is being written.


def _map(path: str, size_bytes: int) -> memoryview:
    """A buffer's memory, its pages made now: the rank's first copy then finds them there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    os.posix_fallocate(descriptor, 0, size_bytes)
    return memoryview(mmap.mmap(descriptor, size_bytes))


def _report(kind: Any, request: SaveRequest, *, size_bytes: int = 0, error: str = "") -> None:
    _answer(
        WriterReport(
            kind=kind,
            save_id=request.save_id,
            size_bytes=size_bytes,
            error=error,
        )
    )


def _answer(report: WriterReport) -> None:
    sys.stdout.write(report.model_dump_json() + "\n")
    sys.stdout.flush()


def _sentence(error: Exception) -> str:
    if isinstance(error, CheckpointError):
        return str(error)
    return f"rank 0: {type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
