"""Checks of the `faults:` section: each fault can really strike."""

from __future__ import annotations

import builtins
import signal
from collections.abc import Iterator
from difflib import get_close_matches

from configs.schema import FaultConfig, RunConfig


def check_faults(config: RunConfig) -> Iterator[str]:
    """A sentence for each fault that could not strike."""
    for index, fault in enumerate(config.faults):
        for problem in _check_fault(config, fault):
            yield f"faults[{index}].{problem}"


def _check_fault(config: RunConfig, fault: FaultConfig) -> Iterator[str]:
    world_size, steps = config.parallel.world_size, config.train.steps
    if fault.rank >= world_size:
        yield f"rank ({fault.rank}) must be less than the {world_size} processes: 0 to {world_size - 1}"
    if fault.step > steps:
        yield f"step ({fault.step}) is after the last step, train.steps ({steps}): it would never strike"
    attempts = config.recovery.max_restarts + 1
    if fault.attempt > attempts:
        yield (
            f"attempt ({fault.attempt}) can never come: recovery.max_restarts "
            f"({config.recovery.max_restarts}) allows {attempts} attempts"
        )
    if fault.kind == "kill":
        yield from _check_signal(fault.signal)
    elif fault.kind == "exception":
        yield from _check_exception(fault.exception)
    elif fault.kind == "full_disk":
        yield from _check_save_step(config, fault.step)


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


def _check_exception(name: str) -> Iterator[str]:
    """Nothing is imported here: names below torch are taken as they are."""
    parts = name.split(".")
    if parts[0] == "torch" and len(parts) > 1 and all(part.isidentifier() for part in parts):
        return
    known = [n for n, value in vars(builtins).items() if _takes_a_message(value)]
    if name not in known:
        yield (
            f"exception ({name!r}) must be a built-in exception that takes a message, like "
            f"{_close(name, known, 'RuntimeError')}, or one of torch, like torch.OutOfMemoryError"
        )


def _takes_a_message(value: object) -> bool:
    if not (isinstance(value, type) and issubclass(value, Exception)):
        return False
    try:
        value("message")
    except TypeError:
        return False
    return True


def _close(name: str, known: list[str], default: str) -> str:
    return (get_close_matches(name, known, n=1) or [default])[0]
