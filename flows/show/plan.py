"""What `overland check` prints: the model's size and what one GPU must hold."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from configs.memory import GIB, estimate_memory
from configs.schema import RunConfig
from configs.shapes import count_parameters, padded_vocab_size


def print_plan(config: RunConfig, console: Console) -> None:
    """Print parameters, layout, tokens and the memory estimate of a checked config."""
    parallel, train = config.parallel, config.train
    vocabulary = padded_vocab_size(config.data.tokenizer.vocab_size)
    parameters = count_parameters(config.model, vocabulary)
    tokens_per_step = train.global_batch_size * config.model.sequence_length
    memory = estimate_memory(config)

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("config", f"{config.name}: ok")
    table.add_row("parameters", f"{parameters:,} (vocabulary {vocabulary:,})")
    table.add_row(
        "processes",
        f"{parallel.world_size} = tensor {parallel.tensor} x pipeline {parallel.pipeline} x "
        f"data {parallel.data}, on {config.launcher.nodes} node(s)",
    )
    table.add_row(
        "tokens",
        f"{tokens_per_step:,} a step, {tokens_per_step * train.steps:,} in {train.steps:,}",
    )
    table.add_row("memory", f"{memory.total / GIB:.2f} GiB on one device (estimate; GiB: {memory})")
    console.print(table, soft_wrap=True)
