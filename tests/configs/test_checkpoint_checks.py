"""Checks of the checkpoint section: what is refused, and the numbers that are offered instead."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from test_config_checks import make, refusal

from configs.checks import check_config

KEEP = {"checkpoint__keep_last": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint__memory_interval_steps": 50},
        {"checkpoint__memory_interval_steps": 1},
        {**KEEP, "checkpoint__keep_every_steps": 100},
        {**KEEP, "checkpoint__keep_best": 3},
        {"checkpoint__storage": "file:///scratch/checkpoints"},
        {"checkpoint__storage": "s3://bucket/prefix"},
        {"checkpoint__memory_limit_gib": 1.0},
    ],
)
def test_settings_that_fit_are_accepted(changes: dict[str, Any]) -> None:
    check_config(make(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"checkpoint__memory_interval_steps": 7},
            "checkpoint.memory_interval_steps (7) must divide checkpoint.interval_steps (50): 5 or 10 "
            "would",
        ),
        (
            {"checkpoint__memory_interval_steps": 100},
            "checkpoint.memory_interval_steps (100) must divide checkpoint.interval_steps (50): 50 would",
        ),
        (
            {"checkpoint__memory_interval_steps": 10, "checkpoint__memory": "off"},
            "checkpoint.memory_interval_steps (10) has no use with checkpoint.memory=off, since a "
            "restart finds nothing in memory: leave one of them out",
        ),
        (
            {**KEEP, "checkpoint__keep_every_steps": 120},
            "checkpoint.keep_every_steps (120) must be a multiple of checkpoint.interval_steps (50): "
            "100 or 150 would fit",
        ),
        (
            {**KEEP, "checkpoint__keep_every_steps": 20},
            "checkpoint.keep_every_steps (20) must be a multiple of checkpoint.interval_steps (50): 50 "
            "would fit",
        ),
        (
            {"checkpoint__keep_every_steps": 100},
            "checkpoint.keep_every_steps (100) has no effect without checkpoint.keep_last, by which any "
            "are removed: checkpoint.keep_last=2 would fit",
        ),
        (
            {"checkpoint__keep_best": 1},
            "checkpoint.keep_best (1) has no effect without checkpoint.keep_last, by which any are "
            "removed: checkpoint.keep_last=2 would fit",
        ),
        (
            {**KEEP, "checkpoint__keep_best": 1, "evaluate__enabled": False},
            "checkpoint.keep_best (1) needs scores: set evaluate.enabled=true, or checkpoint.keep_best=0",
        ),
        (
            {**KEEP, "checkpoint__keep_best": 1, "evaluate__tasks": ["heldout_copy"]},
            "checkpoint.keep_best_metric is of the task heldout_perplexity, which is not evaluated: "
            "evaluate.tasks are heldout_copy",
        ),
        (
            {**KEEP, "checkpoint__keep_best": 1, "checkpoint__keep_best_metric": "word_perplexity"},
            "checkpoint.keep_best_metric ('word_perplexity') must be TASK/METRIC, like "
            "heldout_perplexity/word_perplexity,none",
        ),
        (
            {"recovery__min_hang_timeout_s": 90, "recovery__hang_timeout_s": 30},
            "recovery.min_hang_timeout_s (90) must be at most recovery.hang_timeout_s (30): 30 would fit",
        ),
        (
            {"checkpoint__storage": "scratch/checkpoints"},
            "checkpoint.storage must be the URL of a folder, like s3://BUCKET/PREFIX; without it, the "
            "run directory is the place",
        ),
        (
            {"checkpoint__storage": "s4://bucket/x"},
            "checkpoint.storage begins with s4://, which fsspec does not know: s3://, gs:// and file:// "
            "are some that it does",
        ),
        (
            {"checkpoint__storage": "s3://key:secret@bucket/x"},
            "checkpoint.storage holds credentials: leave them out, and set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        ),
        (
            {"checkpoint__storage": "memory://x"},
            "checkpoint.storage is memory://, which ends with its process: give a lasting place",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    assert refusal(**changes) == message


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refusal(checkpoint__storage="s3://bucket/x") == (
        "checkpoint.storage begins with s3://, for which s3fs is not installed: "
        "pip install 'overland[s3]'"
    )
    assert refusal(checkpoint__storage="gs://bucket/x").endswith("pip install 'gcsfs'")


SEVEN_BILLION: dict[str, Any] = {
    "model__num_layers": 32,
    "model__hidden_size": 4096,
    "model__ffn_hidden_size": 11008,
    "model__num_attention_heads": 32,
    "model__num_query_groups": 32,
    "data__tokenizer": {"vocab_size": 32000},
}


def test_snapshots_keep_to_the_memory_limit() -> None:
    """6.74 billion parameters of 14 bytes, on one node: 87.9 GiB, and as much again."""
    big = {**SEVEN_BILLION, "train__precision": "bf16"}
    assert refusal(**big, checkpoint__memory_limit_gib=100) == (
        "checkpoint.memory_limit_gib (100): 2 snapshot buffers of each of 8 processes need about "
        "175.7 GiB on a node: checkpoint.buffers=1 would need 87.9 GiB, "
        "checkpoint.memory_limit_gib=176 would fit"
    )
    assert refusal(**big, checkpoint__memory_limit_gib=10).endswith(
        "175.7 GiB on a node: checkpoint.memory_limit_gib=176 would fit"
    )
    check_config(make(**big, checkpoint__memory_limit_gib=176))
    small = refusal(checkpoint__memory_limit_gib=0.0001)
    assert "need about 64.7 MiB on a node" in small
    assert small.endswith("checkpoint.memory_limit_gib=0.064 would fit")
    check_config(make(**big, checkpoint__memory_limit_gib=88, checkpoint__buffers=1))
