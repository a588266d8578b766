"""Copies the training state into a buffer while the next forward and backward pass run.

Nothing that is saved changes before the next optimizer step, so the copy needs no consistency of its
own: it begins when a step has ended, and the optimizer of the next step waits for what is not copied
by then. On CPUs a thread copies; on GPUs a side stream does, and it is the GPU that waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch

from tasks.train.buffers import Buffer, Layout, copy_bytes
from tasks.train.state import random_state

RANDOM_STATE = "random_state"


class Copier(Protocol):
    """Copies one snapshot at a time."""

    def begin(self, buffer: Buffer, layout: Layout, done: Callable[[], None]) -> None:
        """Begin to copy; `done` is called from another thread when all of it is there, and may take
        its time: the optimizer does not wait for it."""

    def before_optimizer(self) -> float:
        """Keep the optimizer from changing what is not copied yet; returns the seconds waited."""

    def wait(self) -> None:
        """Wait until the copy is there and `done` was called. Raises what the copy raised."""


class ThreadCopier:
    """For a state in host memory. One thread serves all snapshots: starting one takes a millisecond."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._copied: Future[None] | None = None
        self._finished: Future[None] | None = None

    def begin(self, buffer: Buffer, layout: Layout, done: Callable[[], None]) -> None:
        def copy() -> None:
            for chunk, place in zip(layout.chunks, layout.places, strict=True):
                copy_bytes(chunk.tensor, buffer.view(chunk, place))

        before = self._finished

        def finish() -> None:
            if before is not None:
                before.result()  # what it raised is not lost
            copied.result()
            done()

        copied = self._copied = self._thread.submit(copy)
        self._finished = self._thread.submit(finish)

    def before_optimizer(self) -> float:
        if self._finished is not None and self._finished.done():
            self._finished.result()
        if self._copied is None:
            return 0.0
        started = time.monotonic()
        self._copied.result()
        self._copied = None
        return time.monotonic() - started

    def wait(self) -> None:
        if self._finished is not None:
            self._finished.result()
            self._finished = None


class StreamCopier:
    """For a state in GPU memory: pinned buffers, a stream of its own."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None
        self._thread: threading.Thread | None = None

    def begin(self, buffer: Buffer, layout: Layout, done: Callable[[], None]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for chunk, place in zip(layout.chunks, layout.places, strict=True):
                buffer.view(chunk, place).copy_(chunk.tensor, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        self._copied = copied
        device = torch.cuda.current_device()

        def announce() -> None:
            torch.cuda.set_device(device)
            copied.synchronize()
            done()

        self._thread = threading.Thread(target=announce, name="snapshot", daemon=True)
        self._thread.start()

    def before_optimizer(self) -> float:
        if self._copied is not None:
            # The GPU waits, not this process: the wait is part of the step's time on the device.
            torch.cuda.current_stream().wait_event(self._copied)
            self._copied = None
        return 0.0

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def make_copier(device: torch.device) -> Copier:
    """The copier for the device that the state is on."""
    return StreamCopier() if device.type == "cuda" else ThreadCopier()


def refresh_random_state(layout: Layout) -> None:
    """Put the generators' states of now into their chunk: they change with the next forward pass."""
    for chunk in layout.chunks:
        if chunk.key == RANDOM_STATE:
            chunk.tensor.copy_(random_state().data)
