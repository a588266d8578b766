"""The entries of `faults:`, failures that are caused on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from configs.sections import NonNegativeInt, PositiveFloat, PositiveInt, Section


class FaultConfig(Section):
    """A real fault, caused on purpose in the real process, to see the run recover."""

    kind: Literal[
        "kill", "exception", "script", "full_disk", "hang", "slow", "corrupt_weights", "poison_data"
    ]
    """kill: a signal; exception: raised in the step; script: what a Python file does, in the rank's own
    process; full_disk: at the save; hang: the rank stops; slow: it sleeps in each step; corrupt_weights:
    a bit of its weights flips; poison_data: the batches that a training without faults reads in these
    steps hold noise, in every attempt."""
    step: PositiveInt
    """kill, exception, script, hang, corrupt_weights: just before this step runs; full_disk: at the save of
    this step; slow, poison_data: from this step on."""
    steps: PositiveInt = 1
    """For slow and poison_data: this many steps."""
    delay_s: PositiveFloat = 1.0
    """For slow: seconds of sleep in each step."""
    rank: NonNegativeInt = 0
    attempt: PositiveInt = 1
    """The attempt that it strikes; others run undisturbed. (poison_data strikes all.)"""
    signal: str = "SIGKILL"
    """For kill."""
    exception: str = "RuntimeError"
    """For exception: a built-in's name, or one of torch's, like torch.OutOfMemoryError."""
    message: str = "injected fault"
    script: Path | None = None
    """For script: the file. It finds the rank's `optimizer` and `step` among its names, and the run
    directory in sys.argv[1]. What it raises ends the rank; when it ends well, training goes on."""
