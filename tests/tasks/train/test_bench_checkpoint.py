"""The checkpoint benchmark runs as a real job with all ways to save, and notices a save that is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from training_jobs import make_config

from configs.errors import InputError
from configs.schema import RunConfig
from tasks.train.bench_checkpoint import bench_checkpoint, check_room, default_config
from tasks.train.bench_checkpoint_rounds import SaveTime, summarize
from tasks.train.bench_checkpoint_verify import Digest, digest_of_tensors

NAMES = ["synchronous", "dcp_async_thread", "dcp_async_process", "megatron_async", "overland"]
ROW = {"name", "blocked_s", "first_blocked_s", "slowdown_s", "ratio_vs_sync"}


def tiny() -> RunConfig:
    return make_config(
        {
            "parallel": {"data": 1},
            "checkpoint": {"memory": "on", "wait_for_commit": False},
            "train": {"global_batch_size": 2},
        }
    )


@pytest.mark.slow
@pytest.mark.soak
def test_every_way_to_save_is_measured_and_read_back() -> None:
    result = bench_checkpoint(saves=2, config=tiny())
    assert [row["name"] for row in result["results"]] == NAMES
    for row in result["results"]:
        assert set(row) == ROW
        assert row["blocked_s"] > 0 and row["first_blocked_s"] > 0 and row["ratio_vs_sync"] > 0
        assert math.isfinite(row["slowdown_s"])
    assert result["results"][0]["ratio_vs_sync"] == 1
    assert set(result["verified_saves"].values()) == {2}
    assert {way["name"].partition(":")[0] for way in result["ways"]} == set(NAMES)
    assert all(len(saves) == 3 for saves in result["details"].values())
    assert all(save["steps_s"] for save in result["details"]["overland"])
    assert result["restart_from_memory_s"] > 0 and result["restart_from_storage_s"] > 0
    assert (result["saves"], result["threads"]) == (2, 1)
    assert result["state_bytes"] == 12 * result["model_parameters"]


def test_the_default_model_has_a_hundred_million_parameters() -> None:
    from configs.shapes import count_parameters, padded_vocab_size

    config = default_config(on_gpu=False)
    vocabulary = padded_vocab_size(config.data.tokenizer.vocab_size)
    assert count_parameters(config.model, vocabulary) >= 100_000_000


def test_what_does_not_fit_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"needs \d+\.\d GiB of memory .* \d+\.\d GiB are free"):
        check_room(1 << 50, tmp_path)


def test_a_median_needs_several_saves() -> None:
    with pytest.raises(InputError, match="at least 2 saves, not 1"):
        bench_checkpoint(saves=1)


def test_a_digest_notices_later_values() -> None:
    then = [torch.tensor([1.0, 2.0]), torch.zeros(3)]
    later = [torch.tensor([1.0, 2.0000002]), torch.zeros(3)]
    assert digest_of_tensors(then) == digest_of_tensors([torch.cat(then)])
    assert digest_of_tensors(then) != digest_of_tensors(later)
    assert digest_of_tensors([]) == Digest(0, 0, 0)


def test_slowdown_is_measured_against_the_steps_around_and_the_first_save_is_apart() -> None:
    saves = [SaveTime(begin_s=9.0)] + [
        SaveTime(begin_s=0.1, waited_s=0.2, finish_s=0.3, steps_s=[1.5, 1.25], quiet_step_s=1.0)
        for _ in range(2)
    ]
    result = summarize({"synchronous": [SaveTime(begin_s=6.0)] * 3, "other": saves}, "synchronous")
    row = result["results"][1]
    assert row["blocked_s"] == pytest.approx(0.6)
    assert row["first_blocked_s"] == 9.0
    assert row["slowdown_s"] == pytest.approx(0.75)
    assert row["ratio_vs_sync"] == pytest.approx(10)


def test_of_two_ways_the_one_that_loses_less_counts() -> None:
    def saves(begin_s: float, step_s: float) -> list[SaveTime]:
        return [SaveTime(begin_s=begin_s, steps_s=[step_s], quiet_step_s=1.0)] * 3

    measured = {
        "synchronous": saves(2.0, 1.0),
        "x: quick to begin": saves(0.1, 2.0),
        "x: slow to begin": saves(0.5, 1.1),
    }
    result = summarize(measured, "synchronous")
    assert [row["name"] for row in result["results"]] == ["synchronous", "x"]
    assert result["results"][1]["blocked_s"] == 0.5
    assert len(result["ways"]) == 3
