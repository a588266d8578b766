"""Requests to stop: a signal, or a file that somebody makes in the run directory.

They are only noted here; the training loop asks after them in each step, when it can save. A scheduler
sends SIGUSR1 (as a warning, if it is told to) or SIGTERM; the launcher's agent hands both on.
"""

from __future__ import annotations

import signal
import time

from configs.rundir import RunDir

STOP_FILE = "stop file"
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""The more urgent first."""
_LOOK_INTERVAL_S = 1.0


class StopRequests:
    """What has asked this rank to stop. Make it in the main thread, when a save would be worth it:
    until then SIGTERM ends the process, and SIGUSR1 waits."""

    def __init__(self, run: RunDir, *, rank: int) -> None:
        self._stop_path = run.stop_path if rank == 0 else None
        self._look_again_at = 0.0
        self._has_stop_file = False
        self._received: set[int] = set()
        for number in _SIGNALS:
            signal.signal(number, lambda received, _: self._received.add(received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    @property
    def requested(self) -> str:
        """`SIGTERM`, `SIGUSR1` or `stop file`; empty while nothing asks. Rank 0 looks for the file,
        at most once a second."""
        if self._received:
            return next(number.name for number in _SIGNALS if number in self._received)
        if self._stop_path is not None and time.monotonic() >= self._look_again_at:
            self._look_again_at = time.monotonic() + _LOOK_INTERVAL_S
            self._has_stop_file = self._has_stop_file or self._stop_path.exists()
        return STOP_FILE if self._has_stop_file else ""
