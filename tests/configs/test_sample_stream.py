"""Positions in the data: skipped spans, the end of the data, and how they go together."""

from __future__ import annotations

import random

import pytest

from configs.errors import CorpusError
from configs.samples import SampleStream
from configs.schema import TrainConfig


def read(stream: SampleStream, batches: int, position: int = 0) -> list[int]:
    """Where each batch begins."""
    starts = []
    for _ in range(batches):
        starts.append(stream.seek(position))
        position = starts[-1] + stream.batch
    return starts


def test_without_spans_it_counts() -> None:
    stream = SampleStream.of(TrainConfig(steps=10, global_batch_size=4))
    assert (stream.batch, stream.total) == (4, 40)
    assert read(stream, 4) == [0, 4, 8, 12]
    assert stream.after(8, batches=3) == 20


def test_spans_are_jumped_over_and_may_overlap() -> None:
    stream = SampleStream(4, 40, ((8, 16), (12, 20)))
    assert read(stream, 4) == [0, 4, 20, 24]
    assert stream.after(0, batches=3) == 24
    assert (stream.after(4), stream.after(8)) == (8, 24)


def test_the_end_leads_back_to_the_beginning_and_over_the_same_gaps() -> None:
    stream = SampleStream(4, 40, ((4, 12),))
    starts = read(stream, 10)
    assert starts == [0, *range(12, 40, 4), 40, 52]
    assert [stream.index(start) for start in starts[-2:]] == [0, 12]


def test_a_span_of_the_second_round_leaves_the_first_as_it_was() -> None:
    stream = SampleStream(4, 16, ((20, 24),))
    assert read(stream, 8) == [0, 4, 8, 12, 16, 24, 28, 32]
    assert read(stream, 3, position=32) == [32, 40, 44]


def test_a_span_of_another_batch_size_takes_all_batches_that_it_touches() -> None:
    assert read(SampleStream(4, 40, ((6, 9),)), 3) == [0, 12, 16]


def test_skipping_everything_is_refused() -> None:
    with pytest.raises(CorpusError, match="all of the 8 training samples are skipped"):
        SampleStream(4, 8, ((0, 8),)).seek(0)
    with pytest.raises(CorpusError):
        SampleStream(4, 8, ((0, 4), (12, 16))).seek(400)


@pytest.mark.parametrize("seed", range(20))
def test_going_on_from_anywhere_reads_what_an_unbroken_run_reads(seed: int) -> None:
    rng = random.Random(seed)
    batch, rounds = rng.choice((1, 4)), 3
    stream = SampleStream(
        batch,
        20 * batch,
        tuple(
            (first * batch, (first + rng.randint(1, 3)) * batch)
            for first in rng.sample(range(30), 4)
        ),
    )
    starts = read(stream, 20 * rounds)
    for done in range(0, 20 * rounds, 7):
        position = stream.after(0, batches=done)
        assert read(stream, 5, position) == starts[done:][:5] or done + 5 > len(starts)
    for start in starts:
        for first, end in stream.spans:
            assert not first <= start < end
