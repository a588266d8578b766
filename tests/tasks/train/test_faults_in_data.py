"""Faults that do not end the job: poisoned data, flipped bits, slow ranks. And what is read around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from training_jobs import VOCAB_SIZE, make_config

from configs.events import FaultEvent
from configs.fault_schema import FaultConfig
from configs.files import read_json_lines
from configs.rundir import RunDir
from configs.samples import SampleStream, Span
from tasks.train import faults as faults_module
from tasks.train.data import Datasets, MicroBatches, open_datasets
from tasks.train.distributed import World
from tasks.train.events import EventLog
from tasks.train.faults import Faults, flip_bit

POISON = {"kind": "poison_data", "step": 3, "steps": 2}
"""Samples 16 to 31, with 8 in a batch."""


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """megatron-core asks for its rank, to log once."""
    monkeypatch.setenv("RANK", "0")


class Place(SimpleNamespace):
    """A rank's place, without process groups."""


def place(data_rank: int, data_size: int) -> World:
    device = torch.device("cpu")
    return cast("World", Place(device=device, data_rank=data_rank, data_size=data_size))


def open_here(run: RunDir, heard: list[FaultConfig], **sections: Any) -> Datasets:
    config = make_config(sections)
    manifest = run.manifest()
    assert manifest is not None
    nobody = cast("Any", None)
    world = World(0, 1, torch.device("cpu"), torch.float32, control=nobody)
    return open_datasets(run, manifest, config, world, on_poison=heard.append)


def stream_without(*spans: Span) -> SampleStream:
    return SampleStream.of(make_config({}).train, spans)


def read(datasets: Datasets, ranks: int, count: int, **start: Any) -> torch.Tensor:
    """The next `count` samples' tokens, as so many ranks read them, in the order of positions."""
    config = make_config({})
    readers = [
        MicroBatches(datasets.train, config, place(rank, ranks), **start) for rank in range(ranks)
    ]
    rounds = count // (config.train.micro_batch_size * ranks)
    return torch.cat([next(reader)["tokens"] for _ in range(rounds) for reader in readers])


def test_poison_lies_at_its_positions_alike_for_everybody(new_run: Callable[[], RunDir]) -> None:
    run, heard = new_run(), []
    clean = open_here(run, heard)
    poisoned = open_here(run, heard, faults=[POISON])
    assert heard == []
    differing = [
        index
        for index in range(64)
        if not torch.equal(clean.train[index]["labels"], poisoned.train[index]["labels"])
    ]
    assert differing == list(range(16, 32))
    assert [fault.step for fault in heard] == [3]
    noise = poisoned.train[16]
    assert int(noise["tokens"].max()) < VOCAB_SIZE
    assert not torch.equal(noise["tokens"][1:], noise["labels"][:-1])
    again = open_here(run, [], faults=[POISON])
    assert torch.equal(noise["labels"], again.train[16]["labels"])
    assert torch.equal(clean.validation[3]["tokens"], poisoned.validation[3]["tokens"])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_skipped_samples_are_not_read_by_any_number_of_ranks(
    new_run: Callable[[], RunDir], ranks: int
) -> None:
    datasets = open_here(new_run(), [])
    tokens = read(datasets, ranks, 32, stream=stream_without((8, 24), (16, 32)))
    expected = [*range(8), *range(32, 56)]
    assert torch.equal(tokens, torch.stack([datasets.train[i]["tokens"] for i in expected]))


def test_a_run_that_skipped_batches_begins_anew_at_the_end(new_run: Callable[[], RunDir]) -> None:
    """64 samples: 8 steps of 8."""
    datasets = open_here(new_run(), [])
    tokens = read(datasets, 2, 24, consumed_samples=56, stream=stream_without((0, 8)))
    expected = [*range(56, 64), *range(8, 24)]
    assert torch.equal(tokens, torch.stack([datasets.train[i]["tokens"] for i in expected]))


def test_a_flipped_bit_changes_one_weight() -> None:
    weights = [torch.ones(3), torch.full((4, 4), 0.5, requires_grad=True)]
    flip_bit(SimpleNamespace(param_groups=[{"params": weights[:1]}, {"params": weights[1:]}]))
    changed = torch.nonzero(weights[1] != 0.5).tolist()
    assert changed == [[0, 0]] and torch.equal(weights[0], torch.ones(3))
    assert float(weights[1][0, 0].detach()) == pytest.approx(0.5 * (1 + 2**-3))


def test_a_slow_rank_sleeps_in_its_steps_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(faults_module.time, "sleep", slept.append)
    fault = FaultConfig(kind="slow", step=3, steps=2, delay_s=0.5, rank=1)
    path = tmp_path / "events.jsonl"
    for rank in (0, 1):
        faults = Faults([fault], attempt=1, rank=rank, events=EventLog(path))
        for step in range(1, 8):
            faults.before_step(step)
    assert slept == [0.5, 0.5]
    told = [FaultEvent.model_validate(value) for value, _ in read_json_lines(path)]
    assert [(event.kind, event.step, event.rank) for event in told] == [("slow", 3, 1)]


def test_poison_is_put_on_record_by_one_rank(tmp_path: Path) -> None:
    fault = FaultConfig.model_validate(POISON)
    path = tmp_path / "events.jsonl"
    for rank in (0, 1):
        Faults([fault], attempt=2, rank=rank, events=EventLog(path)).on_poison(fault)
    assert [value["step"] for value, _ in read_json_lines(path)] == [3]
