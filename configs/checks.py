"""Checks of a config that concern several sections at once. Each sentence says what would fit.

`check_config` looks at the config alone (and at whether folders named in it exist); it starts nothing,
imports nothing, and needs no GPU. What needs the corpus or the tokenizer is checked when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from configs.checkpoint_checks import check_checkpoints, check_snapshot_memory
from configs.diagnose_checks import check_diagnose
from configs.errors import ConfigError
from configs.fault_checks import check_faults
from configs.memory import GIB, MemoryEstimate, estimate_memory, readable
from configs.regression_checks import check_regressions
from configs.schema import ParallelConfig, RunConfig
from configs.shapes import VOCAB_MULTIPLE
from configs.slurm_checks import check_slurm, check_withheld

_USABLE_MEMORY = 0.92
"""Share of a GPU's memory left by the CUDA context, NCCL's buffers and fragmentation."""

_TRACKING_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
"""What MLflow can record to; a database's may name its driver too, like postgresql+psycopg2."""


def check_config(config: RunConfig) -> None:
    """Raise ConfigError with all that does not fit together, a line each."""
    problems = [
        *_check_data(config),
        *_check_model(config),
        *_check_parallel(config),
        *_check_batch(config),
        *_check_schedule(config),
        *check_checkpoints(config),
        *check_faults(config),
        *check_diagnose(config.diagnose),
        *_check_anomalies(config),
        *_check_evaluate(config),
        *_check_tracking(config),
    ]
    if not problems:  # these divide by what was just checked
        problems = [*_check_memory(config), *check_snapshot_memory(config)]
    if problems:
        raise ConfigError("\n".join(problems))


def check_launchable(config: RunConfig) -> None:
    """Raise ConfigError when the configured launcher cannot start the configured processes."""
    launcher = config.launcher
    if launcher.kind == "local" and launcher.nodes > 1:
        raise ConfigError(
            f"launcher.nodes is {launcher.nodes}, but the local launcher runs on this machine alone: "
            f"set launcher.nodes=1 and parallel sizes for {launcher.processes_per_node} processes"
        )
    if launcher.kind == "slurm" and (problems := [*check_slurm(launcher), *check_withheld(config)]):
        raise ConfigError("\n".join(problems))


# --- one section's neighbourhood each -------------------------------------------------------------


def _check_data(config: RunConfig) -> Iterator[str]:
    data = config.data
    if not data.paths and not data.packages:
        yield (
            "data.paths is empty: give files, folders or globs of .txt, .jsonl[.gz|.zst] or .parquet, "
            "like data.paths=[corpus/*.jsonl]"
        )
    run_dir = config.resolved_run_dir()
    for folder in (Path(path).absolute() for path in data.paths):
        if run_dir.is_relative_to(folder) and folder.is_dir():
            yield (
                f"run_dir {run_dir} lies in the corpus folder {folder}, and its own files would be read "
                "as text: choose a run_dir outside"
            )
    path = data.tokenizer.path
    if path is not None and not path.exists():
        yield f"data.tokenizer.path: {path} does not exist: give a tokenizer.json or a folder with one"


def _check_model(config: RunConfig) -> Iterator[str]:
    model = config.model
    hidden, heads, groups = model.hidden_size, model.num_attention_heads, model.num_query_groups
    if hidden % heads:
        yield (
            f"model.num_attention_heads ({heads}) must divide model.hidden_size ({hidden}): "
            f"{_near_divisors(hidden, heads)} would"
        )
    elif hidden // heads % 2:
        yield (
            f"model.hidden_size / model.num_attention_heads is {hidden // heads}, but rotary "
            f"embeddings need an even number: a hidden size of {_even_head_size(hidden, heads)} would do"
        )
    if heads % groups:
        yield (
            f"model.num_query_groups ({groups}) must divide model.num_attention_heads ({heads}): "
            f"{_near_divisors(heads, groups)} would"
        )


def _check_parallel(config: RunConfig) -> Iterator[str]:
    parallel, model, launcher = config.parallel, config.model, config.launcher
    processes = launcher.nodes * launcher.processes_per_node
    if parallel.world_size != processes:
        yield (
            f"parallel: tensor {parallel.tensor} x pipeline {parallel.pipeline} x data "
            f"{parallel.data} = {parallel.world_size} processes, but launcher.nodes {launcher.nodes} "
            f"x launcher.processes_per_node {launcher.processes_per_node} = {processes}: "
            f"{_fitting_layout(parallel, processes)}"
        )
    split = {
        "model.num_attention_heads": model.num_attention_heads,
        "model.num_query_groups": model.num_query_groups,
        "model.ffn_hidden_size": model.ffn_hidden_size,
        "the vocabulary's padding": VOCAB_MULTIPLE,
    }
    uneven = [f"{name} ({size})" for name, size in split.items() if size % parallel.tensor]
    if uneven:
        yield (
            f"parallel.tensor ({parallel.tensor}) must divide {' and '.join(uneven)}: "
            f"{_near_divisors(math.gcd(*split.values()), parallel.tensor)} would"
        )
    if model.num_layers % parallel.pipeline:
        yield (
            f"parallel.pipeline ({parallel.pipeline}) must divide model.num_layers "
            f"({model.num_layers}): {_near_divisors(model.num_layers, parallel.pipeline)} would"
        )
    yield from _check_sequence_and_recompute(config)


def _check_sequence_and_recompute(config: RunConfig) -> Iterator[str]:
    parallel, model = config.parallel, config.model
    if parallel.sequence and parallel.tensor == 1:
        yield "parallel.sequence needs parallel.tensor of 2 or more: set parallel.sequence=false"
    if parallel.sequence and model.sequence_length % parallel.tensor:
        fitting = _round_up(model.sequence_length, parallel.tensor)
        yield (
            f"parallel.sequence splits model.sequence_length ({model.sequence_length}) over "
            f"parallel.tensor ({parallel.tensor}): {fitting} tokens would fit"
        )
    layers = model.num_layers // parallel.pipeline
    if parallel.recompute_layers > layers > 0:
        yield (
            f"parallel.recompute_layers ({parallel.recompute_layers}) is more than the {layers} "
            f"layers of a pipeline stage: {layers} recomputes all of them"
        )


def _check_batch(config: RunConfig) -> Iterator[str]:
    train, data = config.train, config.parallel.data
    at_once = train.micro_batch_size * data
    if train.global_batch_size % at_once:
        below = train.global_batch_size // at_once * at_once
        fitting = f"{below} or {below + at_once}" if below else str(at_once)
        yield (
            f"train.global_batch_size ({train.global_batch_size}) must be a multiple of "
            f"train.micro_batch_size ({train.micro_batch_size}) x parallel.data ({data}) = "
            f"{at_once}: {fitting} would fit"
        )


def _check_schedule(config: RunConfig) -> Iterator[str]:
    train, interval = config.train, config.checkpoint.interval_steps
    if train.warmup_steps >= train.steps:
        yield (
            f"train.warmup_steps ({train.warmup_steps}) must be less than train.steps "
            f"({train.steps}): {train.steps // 10} would fit"
        )
    if train.min_learning_rate > train.learning_rate:
        yield (
            f"train.min_learning_rate ({train.min_learning_rate:g}) must be at most "
            f"train.learning_rate ({train.learning_rate:g}): {train.learning_rate / 10:g} would fit"
        )
    if interval > train.steps:
        yield (
            f"checkpoint.interval_steps ({interval}) is more than train.steps ({train.steps}), so a "
            f"failure would lose everything: {max(1, train.steps // 4)} would fit"
        )


def _check_anomalies(config: RunConfig) -> Iterator[str]:
    anomalies = config.anomalies
    window, patience = anomalies.spike_window_steps, anomalies.spike_patience_steps
    if anomalies.enabled and patience > window:
        yield (
            f"anomalies.spike_patience_steps ({patience}) must be at most "
            f"anomalies.spike_window_steps ({window}), the steps that tell what is usual: "
            f"{min(20, window)} would fit, or anomalies.spike_window_steps={patience}"
        )


def _check_evaluate(config: RunConfig) -> Iterator[str]:
    evaluate = config.evaluate
    if evaluate.enabled and not evaluate.tasks:
        yield "evaluate.tasks is empty: name at least one task, or set evaluate.enabled=false"
    for task in sorted({t for t in evaluate.tasks if evaluate.tasks.count(t) > 1}):
        yield f"evaluate.tasks names {task} twice: once is enough"
    for folder in evaluate.task_dirs:
        if not folder.is_dir():
            yield f"evaluate.task_dirs: {folder} is no folder: give folders of lm-eval YAML tasks"
    if evaluate.nodes > 1 and config.launcher.kind != "slurm":
        yield f"evaluate.nodes is {evaluate.nodes}, for a cluster: set launcher.kind=slurm, or leave it 1"
    if evaluate.enabled:
        yield from check_regressions(evaluate.regressions)


def _check_tracking(config: RunConfig) -> Iterator[str]:
    """The value itself is not repeated: it may hold a password."""
    uri = config.tracking.uri
    if not config.tracking.enabled or not uri or uri == "databricks":
        return
    scheme, separator, _ = uri.partition("://")
    if not separator or scheme == "file":
        yield (
            "tracking.uri is a plain path, to which MLflow does not write any more: give "
            "sqlite:///PATH for a file, or http://HOST:PORT for a server"
        )
    elif scheme.partition("+")[0] not in _TRACKING_SCHEMES:
        yield (
            f"tracking.uri begins with {scheme}://, which MLflow does not know: it knows "
            f"{', '.join(_TRACKING_SCHEMES)}, like sqlite:///PATH or http://HOST:PORT"
        )


# --- memory ---------------------------------------------------------------------------------------


def _check_memory(config: RunConfig) -> Iterator[str]:
    gpu_gib = config.launcher.gpu_memory_gib
    if gpu_gib is None:
        return
    estimate, usable = estimate_memory(config), gpu_gib * _USABLE_MEMORY * GIB
    if estimate.total > usable:
        yield (
            f"the model needs about {readable(estimate.total)} on each GPU ({estimate}), but of "
            f"launcher.gpu_memory_gib ({gpu_gib:g}) about {readable(usable)} can be used: "
            f"{_what_fits(config, usable)}"
        )


def _what_fits(config: RunConfig, usable_bytes: float) -> str:
    """The first changes, in the order of what they cost, that make the model fit."""
    changes: list[str] = []
    for section, key, value in _savings(config):
        part = getattr(config, section)
        if getattr(part, key) == value:
            continue
        changed = part.model_copy(update={key: value})
        config = config.model_copy(update={section: changed})
        changes.append(f"{section}.{key}={str(value).lower()}")
        estimate: MemoryEstimate = estimate_memory(config)
        if estimate.total <= usable_bytes:
            return f"{' '.join(changes)} would need {readable(estimate.total)}"
    return (
        "a larger parallel.tensor or parallel.pipeline, on more GPUs, or a smaller model would fit"
    )


def _savings(config: RunConfig) -> Iterator[tuple[str, str, int | bool]]:
    parallel = config.parallel
    yield "parallel", "distributed_optimizer", parallel.distributed_optimizer or parallel.data > 1
    yield (
        "parallel",
        "sequence",
        parallel.sequence
        or (parallel.tensor > 1 and config.model.sequence_length % parallel.tensor == 0),
    )
    yield "train", "micro_batch_size", 1
    yield "parallel", "recompute_layers", config.model.num_layers // parallel.pipeline


# --- numbers that would fit -----------------------------------------------------------------------


def _fitting_layout(parallel: ParallelConfig, processes: int) -> str:
    model_size = parallel.tensor * parallel.pipeline
    if processes % model_size == 0:
        return f"parallel.data={processes // model_size} would fit"
    return f"parallel.tensor x parallel.pipeline must divide {processes}"


def _near_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` on both sides of `wanted`."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d <= wanted][-1:]
    above = [d for d in divisors if d > wanted][:1]
    return " or ".join(map(str, below + above))


def _even_head_size(hidden: int, heads: int) -> int:
    return heads * (hidden // heads + 1)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
