"""The copier in a thread: what training waits for, and whose failures it hears of."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tasks.train.buffers import Buffer, Layout
from tasks.train.chunks import Chunk
from tasks.train.snapshot import ThreadCopier


@pytest.fixture
def layout() -> Layout:
    tensor = torch.arange(64, dtype=torch.float32)
    chunk = Chunk(key="w", tensor=tensor, global_shape=(64,), offsets=(0,), sizes=(64,), owner=None)
    return Layout.of([chunk])


@pytest.fixture
def buffers(layout: Layout) -> list[Buffer]:
    return [Buffer(Path(f"b{i}"), layout.size_bytes, is_anonymous=True) for i in range(2)]


def copied(layout: Layout, buffer: Buffer) -> bool:
    return torch.equal(buffer.view(layout.chunks[0], layout.places[0]), layout.chunks[0].tensor)


def test_the_optimizer_waits_for_the_copy_and_not_for_what_follows(
    layout: Layout, buffers: list[Buffer]
) -> None:
    copier, may_end, ended = ThreadCopier(), threading.Event(), threading.Event()

    def done() -> None:
        may_end.wait()
        ended.set()

    copier.begin(buffers[0], layout, done)
    copier.before_optimizer()
    assert copied(layout, buffers[0]) and not ended.is_set()
    may_end.set()
    copier.wait()
    assert ended.is_set()


def test_a_second_copy_is_waited_for_while_the_first_is_not_done(
    layout: Layout, buffers: list[Buffer]
) -> None:
    copier, may_end = ThreadCopier(), threading.Event()
    copier.begin(buffers[0], layout, lambda: may_end.wait() and None)
    copier.before_optimizer()
    copier.begin(buffers[1], layout, lambda: None)
    may_end.set()
    copier.before_optimizer()
    assert copied(layout, buffers[1])


def test_a_failure_reaches_the_training_even_after_another_copy(
    layout: Layout, buffers: list[Buffer]
) -> None:
    copier, may_fail = ThreadCopier(), threading.Event()

    def fail() -> None:
        may_fail.wait()
        raise OSError("no room")

    copier.begin(buffers[0], layout, fail)
    copier.before_optimizer()
    copier.begin(buffers[1], layout, lambda: None)
    may_fail.set()
    with pytest.raises(OSError, match="no room"):
        copier.wait()
