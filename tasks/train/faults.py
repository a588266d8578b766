"""Real faults, caused on purpose in this process as the config says, to see the run recover."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from configs.errors import ConfigError
from configs.events import FaultEvent
from configs.fault_checks import check_names, exception_type
from configs.schema import FaultConfig
from tasks.train.events import EventLog

logger = logging.getLogger(__name__)


class Faults:
    """The faults that strike this rank in this attempt."""

    def __init__(
        self, faults: Sequence[FaultConfig], *, attempt: int, rank: int, events: EventLog
    ) -> None:
        self._faults = [fault for fault in faults if (fault.attempt, fault.rank) == (attempt, rank)]
        self._events = events
        # Now that torch is there: what the flow's check had to take as it is.
        if problems := [text for fault in self._faults for text in check_names(fault, torch)]:
            raise ConfigError(f"faults: {problems[0]}")

    def before_step(self, step: int) -> None:
        """Strike just before the step runs: kill, raise or hang."""
        for fault in self._faults:
            if fault.step == step and fault.kind != "full_disk":
                self._announce(fault)
                _strike(fault)

    def before_write(self, step: int, checkpoint_file: Path) -> None:
        """Let the checkpoint file that this rank is about to write meet a full disk."""
        for fault in self._faults:
            if fault.step == step and fault.kind == "full_disk":
                self._announce(fault)
                checkpoint_file.symlink_to("/dev/full")

    def _announce(self, fault: FaultConfig) -> None:
        logger.warning("injecting the configured fault: %s at step %d", fault.kind, fault.step)
        self._events.append(
            FaultEvent(time=time.time(), step=fault.step, rank=fault.rank, kind=fault.kind)
        )


def _strike(fault: FaultConfig) -> None:
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.Signals[fault.signal])
    if fault.kind == "exception":
        raise exception_type(fault.exception, torch)(fault.message)
    while True:  # a hang, or the moment until the signal ends the process
        time.sleep(60)
