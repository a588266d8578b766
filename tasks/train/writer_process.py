"""A rank's handle on its writer process: hands it saves, hears how they end, replaces it when it fails.

A save that the writer does not finish in time, or does not survive, is given to a new writer, up to
`save_attempts` times; then it is given up. Nothing here waits for the writer while training goes on.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from configs.errors import CheckpointError
from tasks.train.checkpoint_format import CALLED_OFF, SaveRequest, WriterReport

logger = logging.getLogger(__name__)

_PIPE_BYTES = 1 << 16


@dataclass
class _Pending:
    """A save that the writer has not finished."""

    request: SaveRequest
    deadline: float
    tries: int = 1
    is_written: bool = False
    """This rank's part is in storage: its buffer is free again."""
    is_called_off: bool = False


@dataclass(frozen=True)
class SaveEnd:
    """A save has ended for this rank; rank 0 hears how the whole of it has."""

    request: SaveRequest
    size_bytes: int = 0
    error: str = ""


@dataclass
class WriterProcess:
    """The writer of one rank."""

    setup: dict[str, Any]
    """What the writer needs to know once: rank, ranks, buffers, table of chunks."""
    start_timeout_s: float
    save_timeout_s: float
    save_attempts: int
    _process: subprocess.Popen[bytes] | None = None
    _received: bytearray = field(default_factory=bytearray)
    _unsent: bytearray = field(default_factory=bytearray)
    """What the pipe had no room for: a writer that does not read must not hold up its rank."""
    _start_deadline: float = 0.0
    """When a writer that has not said that it is ready is late; 0 once it has."""
    _killed: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    """The thread that copies asks for saves, the training loop hears of them."""
    _pending: list[_Pending] = field(default_factory=list)

    def start(self) -> None:
        """Start the process; it gets ready by itself."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tasks.train.writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._received.clear()
        self._unsent.clear()
        self._start_deadline = time.monotonic() + self.start_timeout_s
        self._send(self.setup)

    def save(self, request: SaveRequest) -> None:
        """Ask for a save, after those that were asked for before."""
        with self._lock:
            self._pending.append(_Pending(request, self._deadline()))
            self._send(request.model_dump())

    def call_off(self, save_id: str) -> None:
        """Let a save fail that another rank cannot take part in."""
        with self._lock:
            for pending in self._pending:
                if pending.request.save_id == save_id and not pending.is_called_off:
                    pending.is_called_off = True
                    self._send({"kind": "call_off", "save_id": save_id})

    def buffers_in_use(self) -> set[int]:
        """Buffers that hold what is not in storage yet."""
        with self._lock:
            return {p.request.buffer for p in self._pending if not p.is_written}

    @property
    def is_ready(self) -> bool:
        """Whether it has started, and made the buffers' pages."""
        return self._process is not None and not self._start_deadline

    @property
    def is_idle(self) -> bool:
        """Whether every save has ended."""
        return not self._pending

    def poll(self) -> list[SaveEnd]:
        """Hear what the writer says; see whether it lives and is in time. Never waits."""
        with self._lock:
            self._killed = [process for process in self._killed if process.poll() is None]
            self._flush()
            ended = [end for report in self._reports() if (end := self._hear(report)) is not None]
            if self._pending and (problem := self._problem()):
                ended += self._replace(problem)
            return ended

    def kill(self) -> None:
        """End the process at once: nothing that it does is needed any more. Does not wait for it."""
        if self._process is None:
            return
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._killed.append(self._process)
        self._process = None

    def _hear(self, report: WriterReport) -> SaveEnd | None:
        if report.kind == "ready":
            self._start_deadline = 0.0
            self._count_anew()  # What waited for it is in time from now on.
        pending = next((p for p in self._pending if p.request.save_id == report.save_id), None)
        if pending is None:
            return None
        if report.kind == "waiting":
            self._count_anew()  # It sets itself a limit, and says that it lives.
            return None
        if report.kind == "written" and self._commits:
            pending.is_written = True
            self._count_anew()
            return None
        if report.kind == "failed" and self._commits:
            return None  # "not_committed" follows
        self._pending.remove(pending)
        return SaveEnd(pending.request, report.size_bytes, report.error)

    @property
    def _commits(self) -> bool:
        return bool(self.setup["rank"] == 0)

    def _deadline(self) -> float:
        """When the save that is asked for now is late: those before it come first."""
        return time.monotonic() + self.save_timeout_s * (1 + len(self._pending))

    def _count_anew(self) -> None:
        for place, pending in enumerate(self._pending, start=1):
            pending.deadline = time.monotonic() + self.save_timeout_s * place

    def _problem(self) -> str:
        """What is wrong with the writer; empty when nothing is."""
        if self._process is None:
            return "the writer process could not be started"
        if (code := self._process.poll()) is not None:
            return f"the writer process ended with code {code}"
        if self._start_deadline:
            late = time.monotonic() > self._start_deadline
            return "the writer process does not start" if late else ""
        if time.monotonic() > self._pending[0].deadline:
            return f"not written within checkpoint.save_timeout_s = {self.save_timeout_s:g} s"
        return ""

    def _replace(self, problem: str) -> list[SaveEnd]:
        """Start a new writer, and give it what the old one has not finished."""
        first = self._pending[0]
        logger.warning("%s; training goes on", problem)
        self.kill()
        # Nobody waits for what was called off, and a new writer would not hear of that.
        given_up = [SaveEnd(p.request, error=CALLED_OFF) for p in self._pending if p.is_called_off]
        self._pending = [p for p in self._pending if not p.is_called_off]
        if first in self._pending and first.tries >= self.save_attempts:
            self._pending.remove(first)
            error = f"rank {self.setup['rank']}: {problem}, after {first.tries} attempts"
            given_up.append(SaveEnd(first.request, error=error))
        try:
            self.start()
        except OSError as error:
            raise CheckpointError(f"the writer process cannot be started: {error}") from error
        if self._pending and self._pending[0] is first:
            first.tries += 1
        pending, self._pending = self._pending, []
        for item in pending:
            self._pending.append(item)
            self._resend(item)
        return given_up

    def _resend(self, pending: _Pending) -> None:
        pending.is_written = False
        attempts = self.save_attempts - pending.tries + 1
        pending.request = pending.request.model_copy(update={"attempts": attempts})
        pending.deadline = time.monotonic() + self.save_timeout_s * len(self._pending)
        self._send(pending.request.model_dump())

    def _send(self, message: dict[str, Any]) -> None:
        """Hand the writer a line, as soon as it takes it."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(self._process.stdin.fileno(), self._unsent)]
        except BlockingIOError:
            return  # The next poll goes on.
        except BrokenPipeError:
            self._unsent.clear()  # It has died, which the next poll notices.

    def _reports(self) -> list[WriterReport]:
        if self._process is None or self._process.stdout is None:
            return []
        while chunk := self._process.stdout.read(_PIPE_BYTES):
            self._received += chunk
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        return [WriterReport.model_validate_json(line) for line in lines]
