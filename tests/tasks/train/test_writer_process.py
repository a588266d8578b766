"""The writer process alone, as a rank uses it: commits, retries, replacement, and what it leaves."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.records import CommitMarker
from configs.rundir import RunDir
from configs.schema import RunConfig
from tasks.train.buffers import Buffer, Layout
from tasks.train.checkpoint_format import SAVING_FILE, SaveRequest
from tasks.train.chunks import Chunk
from tasks.train.persist import open_folder, replaced_folder
from tasks.train.writer_process import SaveEnd, WriterProcess

pytestmark = pytest.mark.slow

WAIT_S = 60.0
MARKER = CommitMarker(
    step=0,
    consumed_samples=0,
    model_fingerprint="m",
    padded_vocab_size=128,
    files={},
    attempt=1,
    parallel={},
    committed_at=0.0,
    duration_s=0.0,
)


class Rank:
    """A rank with one tensor, one buffer, and a writer."""

    def __init__(self, folder: Path, *, save_timeout_s: float = 30.0, attempts: int = 2) -> None:
        self.run = RunDir(folder / "run")
        self.run.checkpoints_dir.mkdir(parents=True, exist_ok=True)
        self.tensor = torch.arange(1000, dtype=torch.float32).view(10, 100)
        layout = Layout.of([Chunk("w", (10, 100), (0, 0), (10, 100), self.tensor)])
        self.buffer = Buffer(folder / "buffer_0", layout.size_bytes, is_anonymous=True)
        self.buffer.view(layout.chunks[0], 0).copy_(self.tensor)
        config = RunConfig(run_dir=self.run.path)
        self.writer = WriterProcess(
            start_timeout_s=30.0,
            setup={
                "rank": 0,
                "ranks": 1,
                "run_dir": str(self.run.path),
                "config": config.model_dump(mode="json"),
                "table": layout.table(),
                "buffers": [str(self.buffer.path)],
                "size_bytes": layout.size_bytes,
            },
            save_timeout_s=save_timeout_s,
            save_attempts=attempts,
        )
        self.writer.start()
        self.await_start()

    def await_start(self) -> None:
        """Until then a signal would strike an interpreter that imports."""
        deadline = time.monotonic() + WAIT_S
        while self.writer._start_deadline and time.monotonic() < deadline:
            self.writer.poll()
            time.sleep(0.01)

    def request(self, step: int, **changes: Any) -> SaveRequest:
        content = io.BytesIO()
        torch.save({"step": step}, content)
        return SaveRequest(
            save_id=f"token-{step}",
            step=step,
            buffer=0,
            folder=str(self.run.checkpoint(step).path),
            begun_at=time.time(),
            attempts=self.writer.save_attempts,
            parts_timeout_s=10.0,
            marker=MARKER.model_copy(update={"step": step}),
            common_base64=base64.b64encode(content.getvalue()).decode(),
        ).model_copy(update=changes)

    def wait(self) -> list[SaveEnd]:
        deadline, ended = time.monotonic() + WAIT_S, list[SaveEnd]()
        while not self.writer.is_idle:
            assert time.monotonic() < deadline, "the save has not ended"
            ended += self.writer.poll()
            time.sleep(0.01)
        return ended

    @property
    def pid(self) -> int:
        assert self.writer._process is not None
        return self.writer._process.pid


@pytest.fixture
def make_rank(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    ranks: list[Rank] = []

    def make(**settings: Any) -> Rank:
        ranks.append(Rank(tmp_path, **settings))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.writer.kill()
        for process in rank.writer._killed:
            process.wait(10)


def test_a_save_is_committed_with_torchs_format(make_rank: Callable[..., Rank]) -> None:
    rank = make_rank()
    rank.writer.save(rank.request(5))
    assert rank.writer.buffers_in_use() == {0}
    (end,) = rank.wait()
    assert not end.error and rank.writer.buffers_in_use() == set()
    folder = rank.run.checkpoint(5)
    marker = folder.marker()
    assert marker is not None and marker.size_bytes == end.size_bytes
    assert {p.name for p in folder.path.iterdir()} == {*marker.files, "COMMITTED.json"}
    loaded = {"w": torch.zeros(10, 100)}
    with warnings.catch_warnings(action="ignore"):  # that it loads in a single process
        torch.distributed.checkpoint.load(loaded, checkpoint_id=folder.path, no_dist=True)
    assert torch.equal(loaded["w"], rank.tensor)


def test_a_writer_that_keeps_failing_costs_the_save_and_leaves_nothing(
    make_rank: Callable[..., Rank],
) -> None:
    rank = make_rank()
    rank.writer.save(rank.request(5, full_disk=True))
    rank.writer.save(rank.request(6))
    ends = rank.wait()
    assert [bool(end.error) for end in ends] == [True, False]
    assert "No space left on device" in ends[0].error
    left = [p.name for p in rank.run.checkpoints_dir.iterdir() if not p.name.endswith(".lock")]
    assert left == ["step_00000006"]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)]
)
def test_a_new_writer_takes_over(make_rank: Callable[..., Rank], number: signal.Signals) -> None:
    rank = make_rank(save_timeout_s=4.0)
    os.kill(rank.pid, number)
    rank.writer.save(rank.request(5))
    (end,) = rank.wait()
    assert not end.error and rank.run.checkpoint(5).is_committed()


def test_a_save_whose_writers_all_stop_is_given_up(make_rank: Callable[..., Rank]) -> None:
    rank = make_rank(save_timeout_s=0.3)
    rank.writer.setup["ranks"] = 2  # nor does the second writer end, before it is stopped too
    ends: list[SaveEnd] = []
    os.kill(rank.pid, signal.SIGSTOP)
    rank.writer.save(rank.request(5))
    deadline = time.monotonic() + WAIT_S
    while not ends and time.monotonic() < deadline:
        ends += rank.writer.poll()
        if not rank.writer._start_deadline:
            os.kill(rank.pid, signal.SIGSTOP)
        time.sleep(0.01)
    assert "not written within checkpoint.save_timeout_s = 0.3 s, after 2 attempts" in ends[0].error


def test_what_was_committed_before_the_writer_died_is_not_saved_again(
    make_rank: Callable[..., Rank],
) -> None:
    rank = make_rank()
    rank.writer.save(rank.request(5))
    rank.wait()
    identity = rank.run.checkpoint(5).identity()
    rank.writer.save(rank.request(5))
    (end,) = rank.wait()
    assert not end.error and end.size_bytes > 0
    assert rank.run.checkpoint(5).identity() == identity


def test_a_failed_save_puts_back_what_it_had_moved_aside(make_rank: Callable[..., Rank]) -> None:
    rank = make_rank()
    rank.writer.save(rank.request(5))
    rank.wait()
    identity = rank.run.checkpoint(5).identity()
    rank.writer.save(rank.request(5, save_id="another attempt", full_disk=True))
    (end,) = rank.wait()
    assert end.error
    assert rank.run.checkpoint(5).identity() == identity
    assert not replaced_folder(rank.run.checkpoint(5).path).exists()


def test_a_save_that_is_called_off_ends(make_rank: Callable[..., Rank]) -> None:
    rank = make_rank()
    # A second rank is expected, which never comes.
    rank.writer.kill()
    rank.writer.setup["ranks"] = 2
    rank.writer.start()
    rank.writer.save(rank.request(5, parts_timeout_s=WAIT_S))
    part = rank.run.checkpoint(5).path / "part_00000.json"
    deadline = time.monotonic() + WAIT_S
    while not part.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    rank.writer.call_off("token-5")
    (end,) = rank.wait()
    assert "another rank could not write its part" in end.error
    assert not (rank.run.checkpoint(5).path / SAVING_FILE).exists()


def test_a_new_writer_is_not_given_what_was_called_off(make_rank: Callable[..., Rank]) -> None:
    rank = make_rank(save_timeout_s=2.0)
    # A second rank is expected, which never comes: only the call-off ends the save in time.
    rank.writer.setup["ranks"] = 2
    os.kill(rank.pid, signal.SIGSTOP)
    rank.writer.save(rank.request(5, parts_timeout_s=10 * WAIT_S))
    rank.writer.call_off("token-5")
    (end,) = rank.wait()
    assert "another rank could not write its part" in end.error
    assert not rank.run.checkpoint(5).path.exists()


@pytest.mark.parametrize("rank_has_ended", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_writer_that_fails_since_its_rank_has_ended_says_nothing(
    make_rank: Callable[..., Rank], rank_has_ended: bool
) -> None:
    """Its output is in the rank's log, where a traceback would be taken for what the rank died of."""
    setup = {**make_rank().writer.setup, "buffers": ["/proc/0/fd/9"]}
    command = [sys.executable, "-m", "tasks.train.writer"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as writer:
        assert writer.stdin is not None and writer.stderr is not None
        writer.stdin.write(json.dumps(setup) + "\n")
        writer.stdin.flush()
        if rank_has_ended:
            writer.stdin.close()
        assert (writer.wait(WAIT_S) == 0) is rank_has_ended
        assert ("FileNotFoundError" in writer.stderr.read()) is not rank_has_ended


def test_a_writer_that_waits_for_another_rank_is_not_late(make_rank: Callable[..., Rank]) -> None:
    rank = make_rank(save_timeout_s=3.0)
    rank.writer.kill()
    rank.writer.setup["rank"], rank.writer.setup["ranks"] = 1, 2
    rank.writer.start()
    rank.await_start()
    writer = rank.pid
    folder = rank.run.checkpoint(5).path
    request = rank.request(5, parts_timeout_s=WAIT_S, marker=None, common_base64="")
    rank.writer.save(request)
    opens_at = time.monotonic() + 7  # over two limits later
    while time.monotonic() < opens_at:
        assert rank.writer.poll() == []
        time.sleep(0.01)
    open_folder(folder, request.save_id, None)
    (end,) = rank.wait()
    assert not end.error and rank.pid == writer, "the same writer"
