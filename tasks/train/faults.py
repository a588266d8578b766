"""Real faults, caused on purpose in this process as the config says, to see the run recover."""

from __future__ import annotations

import logging
import os
import runpy
import signal
import time
from collections.abc import Sequence
from typing import Any

import torch

from configs.errors import ConfigError
from configs.events import FaultEvent
from configs.fault_checks import check_names, exception_type
from configs.fault_schema import FaultConfig
from tasks.train.events import EventLog

logger = logging.getLogger(__name__)

_FLIPPED_BIT = 20
"""Of a float32: a high one of the mantissa, so that the weight changes by several per cent."""


_ENDING = ("kill", "exception", "hang")


class Faults:
    """The faults that strike this rank in this attempt."""

    def __init__(
        self, faults: Sequence[FaultConfig], *, attempt: int, rank: int, events: EventLog
    ) -> None:
        self._rank = rank
        self._faults = [fault for fault in faults if (fault.attempt, fault.rank) == (attempt, rank)]
        self._events = events
        # Now that torch is there: what the flow's check had to take as it is.
        if problems := [text for fault in self._faults for text in check_names(fault, torch)]:
            raise ConfigError(f"faults: {problems[0]}")

    def before_step(self, step: int, optimizer: Any = None) -> None:
        """Strike just before the step runs: kill, raise, hang, sleep, run a script, or flip a bit."""
        for fault in self._faults:
            if fault.kind == "slow" and fault.step <= step < fault.step + fault.steps:
                self._sleep(fault, step)
            elif fault.kind == "corrupt_weights" and fault.step == step:
                self._announce(fault)
                flip_bit(optimizer)
            elif fault.kind == "script" and fault.step == step:
                self._announce(fault)
                runpy.run_path(
                    str(fault.script), {"optimizer": optimizer, "step": step}, run_name="__main__"
                )
            elif fault.kind in _ENDING and fault.step == step:
                self._announce(fault)
                _strike(fault)

    def fills_disk(self, step: int) -> bool:
        """Whether this rank's file of the step's checkpoint is to meet a full disk."""
        found = [f for f in self._faults if f.step == step and f.kind == "full_disk"]
        for fault in found:
            self._announce(fault)
        return bool(found)

    def on_poison(self, fault: FaultConfig) -> None:
        """Noise is read for the first time, on all ranks: one of them puts it on record."""
        if self._rank == fault.rank:
            self._announce(fault)

    def _announce(self, fault: FaultConfig) -> None:
        logger.warning("injecting the configured fault: %s at step %d", fault.kind, fault.step)
        self._events.append(
            FaultEvent(time=time.time(), step=fault.step, rank=fault.rank, kind=fault.kind)
        )

    def _sleep(self, fault: FaultConfig, step: int) -> None:
        if step == fault.step:
            self._announce(fault)
        time.sleep(fault.delay_s)


def flip_bit(optimizer: Any) -> None:
    """Flip one bit of the largest weight, where the optimizer keeps it.

    A model in bf16 gets its weights anew from there in every step.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    first = max(weights, key=torch.numel).data.view(-1)[:1]
    first.view(torch.int32).bitwise_xor_(1 << _FLIPPED_BIT)


def _strike(fault: FaultConfig) -> None:
    if fault.kind == "kill":
        number = signal.Signals[fault.signal]
        os.kill(os.getpid(), number)
        if callable(signal.getsignal(number)):  # like SIGTERM: the job goes on until it stops
            return
    if fault.kind == "exception":
        raise exception_type(fault.exception, torch)(fault.message)
    while True:  # a hang, or the moment until the signal ends the process
        time.sleep(60)
