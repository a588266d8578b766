"""Copies the training state into a buffer while the next forward and backward pass run.

Nothing that is saved changes before the next optimizer step, so the copy needs no consistency of its
own: it begins when a step has ended, and the optimizer of the next step waits for what is not copied
by then. On CPUs a thread copies; on GPUs a side stream does, and it is the GPU that waits.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

import torch

from tasks.train.buffers import Buffer, Layout, copy_bytes
from tasks.train.state import random_state

RANDOM_STATE = "random_state"


class Copier(Protocol):
    """Copies one snapshot at a time."""

    def begin(self, buffer: Buffer, layout: Layout, done: Callable[[], None]) -> None:
        """Begin to copy; `done` is called from another thread when all of it is there."""

    def before_optimizer(self) -> float:
        """Keep the optimizer from changing what is not copied yet; returns the seconds waited."""

    def wait(self) -> None:
        """Wait until the copy is there and `done` was called. Raises what the copy raised."""


class ThreadCopier:
    """For a state in host memory. One thread serves all snapshots: starting one takes a millisecond."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._finished = threading.Event()
        self._finished.set()
        self._failure: BaseException | None = None
        threading.Thread(target=self._serve, name="snapshot", daemon=True).start()

    def begin(self, buffer: Buffer, layout: Layout, done: Callable[[], None]) -> None:
        def copy() -> None:
            for chunk, place in zip(layout.chunks, layout.places, strict=True):
                copy_bytes(chunk.tensor, buffer.view(chunk, place))
            done()

        self._finished.clear()
        self._orders.put(copy)

    def before_optimizer(self) -> float:
        if self._finished.is_set():
            self._raise_failure()
            return 0.0
        started = time.monotonic()
        self.wait()
        return time.monotonic() - started

    def wait(self) -> None:
        self._finished.wait()
        self._raise_failure()

    def _serve(self) -> None:
        while True:
            copy = self._orders.get()
            try:
                copy()
            except BaseException as failure:  # raised again in the training's thread
                self._failure = failure
            finally:
                self._finished.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


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
