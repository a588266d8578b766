"""Checks of the `faults:` section, each fault can really strike; and the exceptions that it may name.

Nothing is imported here. Names below torch are taken as they are, until the training job, which has
imported it, gives its torch.
"""

from __future__ import annotations

import builtins
import signal
from collections.abc import Iterator
from difflib import get_close_matches
from operator import attrgetter
from types import ModuleType
from typing import TypeGuard

from configs.errors import ConfigError
from configs.fault_schema import FaultConfig
from configs.schema import RunConfig


def check_faults(config: RunConfig) -> Iterator[str]:
    """A sentence for each fault that could not strike."""
    for index, fault in enumerate(config.faults):
        for problem in _check_fault(config, fault):
            yield f"faults[{index}].{problem}"


def _check_fault(config: RunConfig, fault: FaultConfig) -> Iterator[str]:
    world_size, steps = config.parallel.world_size, config.train.steps
    if fault.kind == "poison_data":
        yield from _check_poison(fault)
    if fault.rank >= world_size:
        yield f"rank ({fault.rank}) must be less than the {world_size} processes: 0 to {world_size - 1}"
    if fault.step > steps:
        yield f"step ({fault.step}) is after the last step, train.steps ({steps}): it would never strike"
    elif (last := fault.step + fault.steps - 1) > steps:
        yield (
            f"steps ({fault.steps}) from step {fault.step} on end at step {last}, after the last step, "
            f"train.steps ({steps}): {steps - fault.step + 1} would fit"
        )
    attempts = config.recovery.max_restarts + 1
    if fault.attempt > attempts:
        yield (
            f"attempt ({fault.attempt}) can never come: recovery.max_restarts "
            f"({config.recovery.max_restarts}) allows {attempts} attempts"
        )
    yield from check_names(fault)
    if fault.kind == "script":
        yield from _check_script(fault)
    elif fault.kind == "full_disk":
        yield from _check_save_step(config, fault.step)
    elif fault.kind == "corrupt_weights":
        yield from _check_replicas(config)
    if fault.steps > 1 and fault.kind not in ("slow", "poison_data"):
        yield f"steps ({fault.steps}): {fault.kind} strikes once; only slow and poison_data last"


def _check_poison(fault: FaultConfig) -> Iterator[str]:
    for name, given in (("rank", fault.rank != 0), ("attempt", fault.attempt != 1)):
        if given:
            yield f"{name}: poison_data lies in the data, for all ranks and attempts: leave this out"


def _check_script(fault: FaultConfig) -> Iterator[str]:
    if fault.script is None:
        yield "script is missing: kind script needs the path of a Python file"
    elif not fault.script.is_file():
        yield f"script ({fault.script}) is no file"


def _check_replicas(config: RunConfig) -> Iterator[str]:
    parallel = config.parallel
    if parallel.data == 1:
        yield (
            "kind (corrupt_weights): with parallel.data = 1 there is no replica to compare the weights "
            "with: at least 2 would show it"
        )
    elif parallel.distributed_optimizer:
        yield (
            "kind (corrupt_weights): with parallel.distributed_optimizer every weight has one owner, "
            "whose value all replicas take over in each step, so they would stay equal: false would do"
        )


def check_names(fault: FaultConfig, torch: ModuleType | None = None) -> Iterator[str]:
    """A sentence for a signal or an exception that does not exist."""
    if fault.kind == "kill":
        yield from _check_signal(fault.signal)
    elif fault.kind == "exception" and not (torch is None and _is_below_torch(fault.exception)):
        try:
            exception_type(fault.exception, torch)
        except ConfigError as error:
            yield str(error)


def exception_type(name: str, torch: ModuleType | None) -> type[Exception]:
    """The built-in exception called `name`, or torch's; ConfigError when it cannot be raised with a
    message."""
    found = _below(torch, name) if _is_below_torch(name) else vars(builtins).get(name)
    if _takes_a_message(found):
        return found
    known = [n for n, value in vars(builtins).items() if _takes_a_message(value)]
    raise ConfigError(
        f"exception ({name!r}) must be a built-in exception that takes a message, like "
        f"{_close(name, known, 'RuntimeError')}, or one of torch, like torch.OutOfMemoryError"
    )


def _check_save_step(config: RunConfig, step: int) -> Iterator[str]:
    interval, steps = config.checkpoint.interval_steps, config.train.steps
    if step <= steps and step % interval and step != steps:
        saved = [
            s
            for s in (step // interval * interval, -(-step // interval) * interval)
            if 0 < s <= steps
        ]
        yield (
            f"step ({step}): a full disk strikes a save, and with checkpoint.interval_steps "
            f"({interval}) there is none at this step: {' or '.join(map(str, saved or [steps]))} would do"
        )


def _check_signal(name: str) -> Iterator[str]:
    if name not in signal.Signals.__members__:
        yield (
            f"signal ({name!r}) is no signal of this system: "
            f"{_close(name, list(signal.Signals.__members__), 'SIGKILL')} is one"
        )


def _is_below_torch(name: str) -> bool:
    first, *parts = name.split(".")
    return first == "torch" and bool(parts) and all(part.isidentifier() for part in parts)


def _below(torch: ModuleType | None, name: str) -> object:
    try:
        return attrgetter(name.removeprefix("torch."))(torch)
    except AttributeError:
        return None


def _takes_a_message(value: object) -> TypeGuard[type[Exception]]:
    if not (isinstance(value, type) and issubclass(value, Exception)):
        return False
    try:
        value("message")
    except TypeError:
        return False
    return True


def _close(name: str, known: list[str], default: str) -> str:
    return (get_close_matches(name, known, n=1) or [default])[0]
