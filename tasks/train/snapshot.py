"""Copies the training state into a buffer while the next forward and backward pass run.

Nothing that is saved changes before the next optimizer step, so the copy needs no consistency of its
own: it begins when a step has ended, and the optimizer of the next step waits for what is not copied
by then. On CPUs a thread copies; on GPUs a side stream does, and it is the GPU that waits.
"""

from __future__ import annotations

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


class _InOrder:
    """Runs what it is given, one after another, in one thread that serves all snapshots: starting a
    thread takes a millisecond. What one raised is raised in the training's thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._last: Future[None] | None = None

    def submit(self, function: Callable[[], None]) -> Future[None]:
        self.raise_failure()
        before = self._last

        def run() -> None:
            if before is not None:
                before.result()
            function()

        self._last = self._thread.submit(run)
        return self._last

    def raise_failure(self) -> None:
        if self._last is not None and self._last.done():
            self.wait()

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None


class ThreadCopier:
    """For a state in host memory."""

    def __init__(self) -> None:
        self._background = _InOrder()
        self._copied: Future[None] | None = None

    def begin(self, buffer: Buffer, layout: Layout, done: Callable[[], None]) -> None:
        def copy() -> None:
            for chunk, place in zip(layout.chunks, layout.places, strict=True):
                copy_bytes(chunk.tensor, buffer.view(chunk, place))

        self._copied = self._background.submit(copy)
        self._background.submit(done)

    def before_optimizer(self) -> float:
        self._background.raise_failure()
        if self._copied is None:
            return 0.0
        started = time.monotonic()
        self._copied.result()
        self._copied = None
        return time.monotonic() - started

    def wait(self) -> None:
        self._background.wait()


class StreamCopier:
    """For a state in GPU memory: pinned buffers, a stream of its own."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._background = _InOrder()
        self._copied: torch.cuda.Event | None = None

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

        self._background.submit(announce)

    def before_optimizer(self) -> float:
        self._background.raise_failure()
        if self._copied is not None:
            # The GPU waits, not this process: the wait is part of the step's time on the device.
            torch.cuda.current_stream().wait_event(self._copied)
            self._copied = None
        return 0.0

    def wait(self) -> None:
        self._background.wait()


def make_copier(device: torch.device) -> Copier:
    """The copier for the device that the state is on."""
    return StreamCopier() if device.type == "cuda" else ThreadCopier()


def refresh_random_state(layout: Layout) -> None:
    """Put the generators' states of now into their chunk: they change with the next forward pass."""
    for chunk in layout.chunks:
        if chunk.key == RANDOM_STATE:
            chunk.tensor.copy_(random_state().data)
