"""Comparing checkpoints bit for bit, and reading what a run holds in memory and storage."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.errors import CheckpointError
from configs.records import CommitMarker
from configs.rundir import COMMIT_MARKER_NAME, RunDir
from tasks.train import persist
from tasks.train.chaos import digest_of_checkpoint, give_memory_back, held_step
from tasks.train.checkpoint_format import SaveRequest
from tasks.train.node_memory import Snapshot, buffer_name, header_of, rank_folder, run_folder

STEP = 5


def save(run: RunDir, values: list[float], *, attempt: int = 1, common: Any = None) -> RunDir:
    """Commit a checkpoint with one tensor, as a writer does."""
    tensor = torch.tensor(values)
    content = io.BytesIO()
    torch.save({"step": STEP, "groups": [{"lr": 0.5}]} if common is None else common, content)
    marker = CommitMarker(
        step=STEP, consumed_samples=0, model_fingerprint="", padded_vocab_size=128, files={},
        attempt=attempt, parallel={}, committed_at=0.0, duration_s=0.0,
    )  # fmt: skip
    request = SaveRequest(
        save_id=f"save-{attempt}",
        step=STEP,
        buffer=0,
        folder=str(run.checkpoint(STEP).path),
        begun_at=0.0,
        marker=marker,
        common_base64=base64.b64encode(content.getvalue()).decode(),
    )
    row = {
        "key": "weight", "dtype": "float32", "global_shape": [len(values)], "offsets": [0],
        "sizes": [len(values)], "place": 0, "is_written": True,
    }  # fmt: skip
    folder = run.checkpoint(STEP).path
    persist.open_folder(folder, request.save_id, request.storage)
    memory = memoryview(bytearray(tensor.numpy().tobytes()))
    persist.commit(request, [persist.write_part(request, [row], memory, 0)])
    return run


def digest(folder: Path, values: list[float], **changes: Any) -> str:
    return digest_of_checkpoint(save(RunDir(folder), values, **changes), STEP)


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    first = digest(tmp_path / "a", [1.0, 2.0])
    assert first == digest(tmp_path / "b", [1.0, 2.0], attempt=2)


@pytest.mark.parametrize(
    ("values", "common"),
    [
        ([1.0, 2.0000002], None),
        ([1.0, 2.0, 0.0], None),
        ([1.0, 2.0], {"step": STEP, "groups": [{"lr": 0.25}]}),
        ([1.0, 2.0], {"step": STEP, "groups": []}),
    ],
)
def test_any_other_bit_gives_another_digest(
    tmp_path: Path, values: list[float], common: Any
) -> None:
    assert digest(tmp_path / "a", [1.0, 2.0]) != digest(tmp_path / "b", values, common=common)


def test_a_negative_zero_is_another_bit(tmp_path: Path) -> None:
    assert digest(tmp_path / "a", [0.0]) != digest(tmp_path / "b", [-0.0])


def test_no_digest_without_a_commit(tmp_path: Path) -> None:
    run = save(RunDir(tmp_path), [1.0])
    (run.checkpoint(STEP).path / COMMIT_MARKER_NAME).unlink()
    with pytest.raises(CheckpointError, match="is not committed"):
        digest_of_checkpoint(run, STEP)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    run = RunDir(tmp_path / "run")
    run.attempt(1).path.mkdir(parents=True)
    run.attempt(1).token_path.write_text("mine")
    yield run
    give_memory_back(run)
    assert not run_folder(run.path).exists()


def leave_snapshot(run: RunDir, rank: int, buffer: int, step: int, token: str = "mine") -> None:
    path = rank_folder(run.path, rank) / buffer_name(buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    snapshot = Snapshot(
        step=step, attempt=1, token=token, consumed_samples=0, optimizer_step=0.0, schedule={}
    )
    header_of(path).write_text(snapshot.model_dump_json())


def test_a_snapshot_counts_when_every_rank_holds_it(run: RunDir) -> None:
    assert held_step(run, ranks=2) == 0
    leave_snapshot(run, rank=0, buffer=0, step=10)
    leave_snapshot(run, rank=0, buffer=1, step=15)
    assert held_step(run, ranks=2) == 0
    leave_snapshot(run, rank=1, buffer=1, step=10)
    assert held_step(run, ranks=2) == 10
    leave_snapshot(run, rank=1, buffer=0, step=15, token="another run's")
    assert held_step(run, ranks=2) == 10
    leave_snapshot(run, rank=1, buffer=0, step=15)
    assert held_step(run, ranks=2) == 15


def test_a_commit_counts_and_a_save_does_not(run: RunDir) -> None:
    save(run, [1.0])
    (run.checkpoint(20).path).mkdir()
    assert held_step(run, ranks=2) == STEP
