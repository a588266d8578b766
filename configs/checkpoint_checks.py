"""Checks of the `checkpoint:` section against the rest, and of the limits in `recovery:`.

`storage` is only looked at here; whether it can be written is found out before training starts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from configs.memory import GIB, gib_up, readable, snapshot_bytes
from configs.schema import RunConfig

S3 = ("s3", "s3a")


def check_checkpoints(config: RunConfig) -> Iterator[str]:
    """A sentence for each setting that cannot be meant so, or has no effect."""
    yield from _check_intervals(config)
    yield from _check_retention(config)
    yield from _check_best(config)
    if config.checkpoint.storage is not None:
        yield from _check_storage(config.checkpoint.storage)
    yield from _check_recovery(config)


def check_snapshot_memory(config: RunConfig) -> Iterator[str]:
    """Whether the snapshot buffers keep to their limit. The layout must be divisible."""
    checkpoint, processes = config.checkpoint, config.launcher.processes_per_node
    if checkpoint.memory_limit_gib is None:
        return
    limit, one = checkpoint.memory_limit_gib * GIB, snapshot_bytes(config) * processes
    needed = checkpoint.buffers * one
    if needed > limit:
        fewer = ""
        if checkpoint.buffers > 1 and one <= limit:
            fewer = f"checkpoint.buffers=1 would need {readable(one)}, "
        yield (
            f"checkpoint.memory_limit_gib ({checkpoint.memory_limit_gib:g}): {checkpoint.buffers} "
            f"snapshot buffers of each of {processes} processes need about {readable(needed)} on a "
            f"node: {fewer}checkpoint.memory_limit_gib={gib_up(needed):g} would fit"
        )


def _check_intervals(config: RunConfig) -> Iterator[str]:
    checkpoint = config.checkpoint
    interval, in_memory = checkpoint.interval_steps, checkpoint.memory_interval_steps
    if in_memory is None:
        return
    if in_memory > interval or interval % in_memory:
        yield (
            f"checkpoint.memory_interval_steps ({in_memory}) must divide checkpoint.interval_steps "
            f"({interval}): {_near_divisors(interval, in_memory)} would"
        )
    if checkpoint.memory == "off":
        yield (
            f"checkpoint.memory_interval_steps ({in_memory}) has no use with checkpoint.memory=off, "
            "since a restart finds nothing in memory: leave one of them out"
        )


def _check_retention(config: RunConfig) -> Iterator[str]:
    checkpoint = config.checkpoint
    interval, every = checkpoint.interval_steps, checkpoint.keep_every_steps
    if checkpoint.keep_last is None:
        for name, value in (("keep_every_steps", every), ("keep_best", checkpoint.keep_best)):
            if value:
                yield (
                    f"checkpoint.{name} ({value}) has no effect without checkpoint.keep_last, by which "
                    "any are removed: checkpoint.keep_last=2 would fit"
                )
    if every is not None and every % interval:
        below = every // interval * interval
        fitting = f"{below} or {below + interval}" if below else str(interval)
        yield (
            f"checkpoint.keep_every_steps ({every}) must be a multiple of checkpoint.interval_steps "
            f"({interval}): {fitting} would fit"
        )


def _check_best(config: RunConfig) -> Iterator[str]:
    checkpoint, evaluate = config.checkpoint, config.evaluate
    if not checkpoint.keep_best:
        return
    if not evaluate.enabled:
        yield (
            f"checkpoint.keep_best ({checkpoint.keep_best}) needs scores: set evaluate.enabled=true, or "
            "checkpoint.keep_best=0"
        )
    task, separator, metric = checkpoint.keep_best_metric.partition("/")
    if not (task and separator and metric):
        yield (
            f"checkpoint.keep_best_metric ({checkpoint.keep_best_metric!r}) must be TASK/METRIC, like "
            "heldout_perplexity/word_perplexity,none"
        )
    elif evaluate.enabled and task not in evaluate.tasks:
        yield (
            f"checkpoint.keep_best_metric is of the task {task}, which is not evaluated: evaluate.tasks "
            f"are {', '.join(evaluate.tasks) or 'none'}"
        )


def _check_storage(url: str) -> Iterator[str]:
    """The value is not repeated before it is known to hold no password."""
    # A run that keeps its checkpoints in its own directory does not wait for fsspec.
    from fsspec.registry import known_implementations, registry

    protocol, separator, rest = url.partition("://")
    if not separator or not rest.strip("/"):
        yield (
            "checkpoint.storage must be the URL of a folder, like s3://BUCKET/PREFIX; without it, the "
            "run directory is the place"
        )
    elif protocol in S3 and "@" in rest:
        yield (
            "checkpoint.storage holds credentials: leave them out, and set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    elif protocol == "memory":
        yield "checkpoint.storage is memory://, which ends with its process: give a lasting place"
    elif protocol not in known_implementations and protocol not in registry:
        yield (
            f"checkpoint.storage begins with {protocol}://, which fsspec does not know: s3://, gs:// "
            "and file:// are some that it does"
        )
    elif protocol in known_implementations:
        yield from _check_package(protocol, known_implementations[protocol]["class"])


def _check_package(protocol: str, class_name: str) -> Iterator[str]:
    package = class_name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        wanted = "overland[s3]" if protocol in S3 else package
        yield (
            f"checkpoint.storage begins with {protocol}://, for which {package} is not installed: "
            f"pip install '{wanted}'"
        )


def _check_recovery(config: RunConfig) -> Iterator[str]:
    recovery = config.recovery
    if recovery.min_hang_timeout_s > recovery.hang_timeout_s:
        yield (
            f"recovery.min_hang_timeout_s ({recovery.min_hang_timeout_s:g}) must be at most "
            f"recovery.hang_timeout_s ({recovery.hang_timeout_s:g}): "
            f"{min(60.0, recovery.hang_timeout_s):g} would fit"
        )


def _near_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` on both sides of `wanted`."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below, above = (
        [d for d in divisors if d <= wanted][-1:],
        [d for d in divisors if d > wanted][:1],
    )
    return " or ".join(map(str, below + above))
