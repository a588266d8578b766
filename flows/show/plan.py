"""What `overland check` prints: the model's size and what one GPU must hold."""

from __future__ import annotations

from rich.console import Console

from configs.memory import estimate_memory, readable
from configs.schema import RunConfig
from configs.shapes import count_parameters, padded_vocab_size
from flows.show import words
from flows.show.layout import print_places


def print_plan(config: RunConfig, console: Console) -> None:
    """Print parameters, layout, tokens and the memory estimate of a checked config."""
    parallel, train = config.parallel, config.train
    vocabulary = padded_vocab_size(config.data.tokenizer.vocab_size)
    parameters = count_parameters(config.model, vocabulary)
    tokens_per_step = train.global_batch_size * config.model.sequence_length
    memory = estimate_memory(config)

    layout = f"tensor {parallel.tensor} x pipeline {parallel.pipeline} x data {parallel.data}"
    nodes = words.plural(config.launcher.nodes, "node")
    steps = words.plural(train.steps, "step")
    facts = [
        ("config", f"{config.name}: ok"),
        ("parameters", f"{parameters:,} (vocabulary {vocabulary:,})"),
        ("processes", f"{parallel.world_size} = {layout}, on {nodes}"),
        ("tokens", f"{tokens_per_step:,} a step, {tokens_per_step * train.steps:,} in {steps}"),
        ("memory", f"about {readable(memory.total)} on each device: {memory}"),
    ]
    print_places(facts, console)
