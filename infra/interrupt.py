"""Ctrl-C that is not lost, and that does not cut short what an earlier one began; SIGTERM likewise.

A KeyboardInterrupt is raised wherever the program happens to be; inside a library that talks to a
server it can be swallowed. The command's handler therefore notes it as well, and the loops that
wait for jobs look. Without :func:`install` (flows called from Python) nothing here does anything.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SAME_PRESS_S = 0.5
"""Whoever wraps the command (make, uv run) may pass on the Ctrl-C that the terminal sends as well."""

_pressed_at = -math.inf
_held_off = threading.Event()


def install() -> None:
    """Note each Ctrl-C from now on, unless whoever started this process wants it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_interrupt)


def _on_interrupt(*_: object) -> None:
    global _pressed_at
    earlier, _pressed_at = _pressed_at, time.monotonic()
    if _pressed_at - earlier > _SAME_PRESS_S and not _held_off.is_set():
        raise KeyboardInterrupt


@contextmanager
def exit_on_sigterm(code: int = 128 + signal.SIGTERM) -> Iterator[None]:
    """Let SIGTERM leave the block as an exception does, so that what it began is ended with it.

    The former handler is put back: one left behind would be inherited by every process forked
    later, and a library that ends its workers by SIGTERM then waits for them for ever now and then.
    """
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def raise_if_interrupted() -> None:
    """Raise a KeyboardInterrupt that was lost; in the main thread, as Python does."""
    if _pressed_at > -math.inf and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


@contextmanager
def held_off() -> Iterator[None]:
    """Let no further Ctrl-C cut short what the block ends in good order."""
    _held_off.set()
    try:
        yield
    finally:
        _held_off.clear()
