"""Parts of training that need no job: sizes, schedule, FLOPs, faults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.errors import ConfigError
from configs.events import EndEvent
from configs.fault_schema import FaultConfig
from configs.files import read_json_lines
from configs.schema import ModelConfig, TrainConfig
from configs.shapes import count_parameters, padded_vocab_size
from tasks.train.distributed import compute_threads, resolve_dtype
from tasks.train.events import EventLog
from tasks.train.faults import Faults
from tasks.train.flops import flops_per_token, peak_flops, utilisation
from tasks.train.loop import mean_loss
from tasks.train.model import model_fingerprint
from tasks.train.optimizer import build_schedule

LLAMA_7B = ModelConfig(
    num_layers=32,
    hidden_size=4096,
    ffn_hidden_size=11008,
    num_attention_heads=32,
    num_query_groups=32,
    sequence_length=2048,
)


@pytest.mark.parametrize(("size", "padded"), [(1, 128), (128, 128), (129, 256), (32000, 32000)])
def test_vocabulary_is_padded_to_128(size: int, padded: int) -> None:
    assert padded_vocab_size(size) == padded


def test_parameters_and_flops_of_a_known_model() -> None:
    assert count_parameters(LLAMA_7B, 32000) == 6_738_415_616
    matrices = count_parameters(LLAMA_7B, 32000) - 32000 * 4096 - (2 * 32 + 1) * 4096
    attention = 32 * 2 * 2 * 4096 * 2048 / 2
    assert flops_per_token(LLAMA_7B, 32000) == pytest.approx(3 * (2 * matrices + attention))


def test_grouped_queries_cost_less() -> None:
    grouped = LLAMA_7B.model_copy(update={"num_query_groups": 8})
    saved = 2 * 4096 * 2 * (4096 - 1024) * 32 * 3
    assert flops_per_token(LLAMA_7B, 32000) - flops_per_token(grouped, 32000) == saved


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10", 125.0),
        ("NVIDIA H20", 148.0),
        ("NVIDIA RTX A3000", None),
        ("cpu (x86_64)", None),
    ],
)
def test_peaks_are_looked_up_by_name(device: str, tflops: float | None) -> None:
    expected = None if tflops is None else tflops * 1e12
    assert peak_flops(TrainConfig(), device, "bf16") == expected


def test_a_configured_peak_wins_and_an_unknown_one_gives_no_utilisation() -> None:
    assert peak_flops(TrainConfig(peak_tflops=0.1), "cpu (x86_64)", "fp32") == 1e11
    assert peak_flops(TrainConfig(), "NVIDIA H100 80GB HBM3", "fp32") is None
    assert utilisation(1000.0, 2e6, 1e10, 2) == pytest.approx(0.1)
    assert utilisation(1000.0, 2e6, None, 2) is None


def test_the_fingerprint_tells_models_and_tokenizers_apart() -> None:
    same = model_fingerprint(ModelConfig(), 384, "tokens")
    assert model_fingerprint(ModelConfig(), 384, "tokens") == same
    assert model_fingerprint(ModelConfig(hidden_size=512), 384, "tokens") != same
    assert model_fingerprint(ModelConfig(), 512, "tokens") != same
    assert model_fingerprint(ModelConfig(), 384, "others") != same


class PlainOptimizer:
    """All that the schedule touches."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": [], "lr": 0.0, "weight_decay": 0.0}]


def rates(train: TrainConfig, steps: int) -> list[float]:
    optimizer = PlainOptimizer()
    schedule = build_schedule(optimizer, train)
    found = []
    for _ in range(steps):
        schedule.step(increment=1)
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """megatron-core asks for its rank, to log once."""
    monkeypatch.setenv("RANK", "0")


@pytest.mark.usefixtures("one_rank")
def test_the_rate_warms_up_linearly_and_falls_along_a_cosine() -> None:
    train = TrainConfig(steps=20, warmup_steps=4, learning_rate=1.0, min_learning_rate=0.1)
    found = rates(train, 20)
    assert found[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert found[11] == pytest.approx(0.55)
    assert found[19] == pytest.approx(0.1)
    assert found[3:] == sorted(found[3:], reverse=True)


@pytest.mark.usefixtures("one_rank")
def test_a_warmup_longer_than_the_run_and_none_at_all() -> None:
    assert rates(TrainConfig(steps=2, warmup_steps=4, learning_rate=1.0), 2) == [0.25, 0.5]
    without = TrainConfig(steps=4, warmup_steps=0, learning_rate=1.0, min_learning_rate=0.0)
    assert rates(without, 4)[-1] == pytest.approx(0.0)


def test_the_reported_loss_survives_the_division_by_micro_batches() -> None:
    loss, reported = mean_loss(torch.tensor([[1.0, 3.0]], requires_grad=True))
    with torch.no_grad():
        loss /= 2
    assert float(reported["loss"]) == 2.0


def test_precision_and_threads() -> None:
    assert resolve_dtype(TrainConfig(), torch.device("cpu")) is torch.float32
    assert resolve_dtype(TrainConfig(), torch.device("cuda")) is torch.bfloat16
    assert resolve_dtype(TrainConfig(precision="bf16"), torch.device("cpu")) is torch.bfloat16
    assert compute_threads(3, 1) == 3
    assert compute_threads(None, 10_000) == 1
    assert compute_threads(None, 1) == len(os.sched_getaffinity(0))


def test_faults_strike_only_their_rank_attempt_and_step(tmp_path: Path) -> None:
    fault = FaultConfig(kind="exception", step=3, rank=1, attempt=2, exception="KeyError")
    events = EventLog(tmp_path / "events.jsonl")
    Faults([fault], attempt=1, rank=1, events=events).before_step(3)
    Faults([fault], attempt=2, rank=0, events=events).before_step(3)
    struck = Faults([fault], attempt=2, rank=1, events=events)
    struck.before_step(2)
    assert not (tmp_path / "events.jsonl").exists()
    with pytest.raises(KeyError, match="injected fault"):
        struck.before_step(3)
    assert '"kind": "exception"' in (tmp_path / "events.jsonl").read_text()


def test_an_event_that_a_full_disk_refuses_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    events = EventLog(path)
    path.symlink_to("/dev/full")
    events.append(EndEvent(time=1.0, step=1))
    assert "the event 'end' was dropped: [Errno 28] No space left on device" in caplog.text
    path.unlink()  # Somebody has made room.
    events.append(EndEvent(time=2.0, step=2))
    assert [value["step"] for value, _ in read_json_lines(path)] == [2]


@pytest.mark.parametrize(
    "name",
    ["NoSuchError", "os.getcwd", "torch.NoSuchError", "torch.nn.Module", "zipfile.BadZipFile"],
)
def test_an_exception_that_cannot_strike_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    fault = FaultConfig(kind="exception", step=1, exception=name)
    with pytest.raises(ConfigError, match=rf"^faults: exception \('{name}'\) must be a built-in"):
        Faults([fault], attempt=1, rank=0, events=EventLog(tmp_path / "events.jsonl"))


@pytest.mark.parametrize(
    ("name", "exception"),
    [
        ("torch.OutOfMemoryError", torch.OutOfMemoryError),
        ("torch.distributed.DistBackendError", torch.distributed.DistBackendError),
        ("ZeroDivisionError", ZeroDivisionError),
    ],
)
def test_exceptions_strike_by_name(tmp_path: Path, name: str, exception: type[Exception]) -> None:
    fault = FaultConfig(kind="exception", step=1, exception=name, message="on purpose")
    faults = Faults([fault], attempt=1, rank=0, events=EventLog(tmp_path / "events.jsonl"))
    with pytest.raises(exception, match="on purpose"):
        faults.before_step(1)


def test_a_full_disk_strikes_the_save_of_its_step_alone(tmp_path: Path) -> None:
    fault = FaultConfig(kind="full_disk", step=3)
    events = EventLog(tmp_path / "events.jsonl")
    faults = Faults([fault], attempt=1, rank=0, events=events)
    assert [faults.fills_disk(step) for step in (2, 3)] == [False, True]
    assert len(list(read_json_lines(tmp_path / "events.jsonl"))) == 1
