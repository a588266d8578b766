"""The parts of the anomaly watch that need no process group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from configs.events import StartEvent, StepEvent
from configs.files import append_json_line
from configs.rundir import RunDir
from tasks.train import anomalies, stragglers
from tasks.train.anomalies import past_losses
from tasks.train.replicas import checksum, odd_ones
from tasks.train.stragglers import FLOOR_S, BusyClock, find_stragglers

# --- stragglers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy_s", "found"),
    [
        ([1.0, 1.0, 1.0, 1.51], [3]),
        ([1.0, 1.0, 1.0, 1.49], []),
        ([1.0, 1.6], [1]),  # of two ranks, the faster is the measure
        ([2.0, 1.0, 2.0, 1.0, 1.0], [0, 2]),
        ([2.0, 2.0, 2.0, 1.0], []),  # most are slow: that is their usual time
        ([1e-4, 1e-4, 1e-4 + FLOOR_S / 2], []),  # many times the median, and yet nothing
        ([1e-4, 1e-4, 2e-4 + FLOOR_S], [2]),
        ([0.0, 0.0, 0.0], []),
        ([5.0], []),
    ],
)
def test_stragglers_are_far_above_the_median_rank(busy_s: list[float], found: list[int]) -> None:
    assert [straggler.rank for straggler in find_stragglers(busy_s, 1.5)] == found


def test_the_clock_takes_the_median_step_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 10.0, 19.0, 20.0, 22.0])
    monkeypatch.setattr(stragglers.time, "monotonic", lambda: next(moments))
    clock = BusyClock(torch.device("cpu"))
    for _ in range(3):
        clock.begin()
        clock.stop()
        clock.stop()  # without a step
    assert clock.take() == 2.0  # of 1, 9 and 2
    assert clock.take() == 0.0


# --- replicas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checksums", "odd"),
    [
        ([7, 7, 7], []),
        ([7], []),
        ([7, 8, 7], [1]),
        ([7, 8, 7, 9, 7], [1, 3]),
        ([7, 8], [0, 1]),
        ([7, 8, 9], [0, 1, 2]),
        ([7, 7, 8, 8], [0, 1, 2, 3]),
    ],
)
def test_the_majority_is_right_and_without_one_nobody_is(
    checksums: list[int], odd: list[int]
) -> None:
    assert odd_ones(checksums) == odd


def model_of(*parameters: torch.Tensor) -> torch.nn.Module:
    return torch.nn.ParameterList([torch.nn.Parameter(p.clone()) for p in parameters])


@pytest.mark.parametrize("size", [1, 3, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_flipped_bit_changes_the_checksum(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(1)
    model = model_of(torch.randn(5).to(dtype), torch.randn(size).to(dtype))
    clean = int(checksum(model))
    bits = 8 * dtype.itemsize
    whole = {16: torch.int16, 32: torch.int32}[bits]
    for bit in range(bits):
        mask = (1 << bit) - (1 << bits if bit == bits - 1 else 0)  # the last is the sign
        weight = next(iter(reversed(list(model.parameters())))).data[size // 2 :][:1]
        weight.view(whole).bitwise_xor_(mask)
        assert int(checksum(model)) != clean, bit
        weight.view(whole).bitwise_xor_(mask)
    assert int(checksum(model)) == clean


def test_weights_that_change_places_are_seen() -> None:
    first, second = torch.full((4,), 1.0), torch.full((4,), 2.0)
    assert int(checksum(model_of(first, second))) != int(checksum(model_of(second, first)))


def test_a_weight_that_is_no_number_compares_like_any_other() -> None:
    broken = torch.tensor([1.0, float("nan")])
    assert int(checksum(model_of(broken))) == int(checksum(model_of(broken)))


# --- the losses before a resumed job's first step -------------------------------------------------


def add_attempt(run: RunDir, number: int, started: int | None, steps: Sequence[int]) -> None:
    """An attempt whose losses tell it and the step: 2.040 is step 40 of attempt 2."""
    path = run.attempt(number).events_path
    path.parent.mkdir(parents=True)
    path.touch()
    if started is not None:
        start = StartEvent(
            time=1.0,
            step=started,
            checkpoint=None,
            world_size=1,
            device="cpu",
            precision="fp32",
            num_parameters=1,
            padded_vocab_size=1,
        )
        append_json_line(path, start.model_dump())
    for step in steps:
        event = StepEvent(
            time=1.0,
            step=step,
            loss=number + step / 1000,
            grad_norm=1.0,
            learning_rate=0.1,
            step_time_s=1.0,
            tokens_per_s=1.0,
        )
        append_json_line(path, event.model_dump())


@pytest.mark.parametrize("tail_bytes", [100, 1000, 1 << 20])
def test_each_step_counts_as_it_was_computed_last(
    tmp_path: Path, tail_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anomalies, "_TAIL_BYTES", tail_bytes)
    run = RunDir(tmp_path)
    add_attempt(run, 1, 0, range(1, 31))
    add_attempt(run, 2, 20, range(21, 26))
    add_attempt(run, 3, None, [])  # died before it began
    add_attempt(run, 4, 24, range(25, 28))
    assert past_losses(run, 27, 5) == [2.023, 2.024, 4.025, 4.026, 4.027]
    assert past_losses(run, 27, 9) == [1.019, 1.02, 2.021, 2.022, 2.023, 2.024, 4.025, 4.026, 4.027]
    assert past_losses(run, 22, 4) == [1.019, 1.02, 2.021, 2.022]  # rolled back to there
    assert past_losses(run, 10, 3) == [1.008, 1.009, 1.01]
    assert len(past_losses(run, 27, 100)) == 27
    assert past_losses(run, 0, 5) == []
