"""Rank 0 indexes the samples, and the others wait for it, each with a limit of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from training_jobs import make_config

from configs.errors import CorpusError
from configs.rundir import RunDir
from tasks.train.data import Datasets, open_datasets
from tasks.train.distributed import World


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """megatron-core asks for its rank, to log once."""
    monkeypatch.setenv("RANK", "0")


def open_as(rank: int, run: RunDir, startup_timeout_s: float) -> Datasets:
    """Open the data sets as one of two ranks, which agree about nothing here."""
    config = make_config({"recovery": {"startup_timeout_s": startup_timeout_s}})
    manifest = run.manifest()
    assert manifest is not None
    nobody = cast("Any", None)
    world = World(rank, 2, torch.device("cpu"), torch.float32, control=nobody)
    return open_datasets(run, manifest, config, world)


def test_ranks_wait_until_rank_0_has_built_the_index(new_run: Callable[[], RunDir]) -> None:
    run, opened = new_run(), []
    thread = threading.Thread(target=lambda: opened.append(open_as(1, run, 60)), daemon=True)
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive() and not opened
    mine = open_as(0, run, 60)
    thread.join(60)
    (theirs,) = opened
    assert torch.equal(theirs.train[3]["tokens"], mine.train[3]["tokens"])


def test_ranks_wait_no_longer_than_the_start_may_take(new_run: Callable[[], RunDir]) -> None:
    with pytest.raises(CorpusError, match=r"within recovery\.startup_timeout_s = 0\.2 s"):
        open_as(1, new_run(), 0.2)
