"""What `overland check` prints."""

from __future__ import annotations

import io

from rich.console import Console

from configs.schema import ModelConfig, RunConfig
from flows.show.plan import print_plan


def plan(config: RunConfig) -> dict[str, str]:
    """Label -> text, of a plan that is printed into a pipe."""
    stream = io.StringIO()
    print_plan(config, Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert lines == [line.rstrip() for line in lines]
    return {label: text.strip() for label, _, text in (line.partition(" ") for line in lines)}


def test_the_plan_is_one_line_a_fact() -> None:
    shown = plan(RunConfig(name="tiny"))
    assert list(shown) == ["config", "parameters", "processes", "tokens", "memory"]
    assert shown["config"] == "tiny: ok"
    assert shown["processes"] == "1 = tensor 1 x pipeline 1 x data 1, on 1 node"


def test_the_memory_of_a_tiny_model_is_in_mib() -> None:
    model = ModelConfig(num_layers=1, hidden_size=64, ffn_hidden_size=128, num_attention_heads=4)
    memory = plan(RunConfig(model=model))["memory"]
    assert "GiB" not in memory
    total, *parts = (float(word) for word in memory.replace(":", "").split() if word[0].isdigit())
    assert len(parts) == 4 and min(parts) > 0
    assert abs(total - sum(parts)) < 0.3


def test_the_memory_of_a_large_model_is_in_gib() -> None:
    model = ModelConfig(
        num_layers=32, hidden_size=4096, ffn_hidden_size=11008, num_attention_heads=32
    )
    memory = plan(RunConfig(model=model))["memory"]
    assert memory.count("GiB") >= 4 and "GiB: GiB" not in memory
