"""Tells a loss spike from noise: pure arithmetic on the losses, alike on all ranks.

A loss is compared with the healthy ones before it: their median, and their spread around the line
that they follow. Without the line, a curve that falls steeply would seem wide, and hide a spike; with
the median instead of the line's end, a curve that stops falling is not high. The spread has a floor,
so that a converged curve with hardly any noise gives no alarm for a ripple.

A loss half-way to the threshold is raised. Raised ones do not enter the window, which so does not
follow a loss that creeps away. A spike is one that stays: `spike_patience_steps` high losses in a
stretch of raised ones, without recovery between them; the stretch's first step is its onset. A loss
that stays raised for longer without becoming a spike is a new usual one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from configs.schema import AnomalyConfig

_Values = np.ndarray[tuple[int], np.dtype[np.float64]]

_MIN_HISTORY = 16
"""Healthy losses (or a window of fewer) that must be there before any is judged."""
_SIGMA_PER_MAD = 1.4826
_FLOOR_RELATIVE = 0.01
_FLOOR_ABSOLUTE = 0.005
"""Nats per token: least standard deviation of a loss, whatever the window shows."""
_RAISED = 0.5
"""Share of the threshold above which a loss is raised."""


@dataclass(frozen=True)
class Spike:
    """What is wrong with the loss, and since when."""

    kind: Literal["loss_spike", "nonfinite"]
    onset_step: int
    message: str
    """One sentence with the numbers."""


class SpikeDetector:
    """Sees the loss of every step, in order."""

    def __init__(self, config: AnomalyConfig) -> None:
        self._config = config
        self._healthy: deque[float] = deque(maxlen=config.spike_window_steps)
        self._min_history = min(_MIN_HISTORY, config.spike_window_steps)
        self._usual: tuple[float, float] | None = None
        """Median and standard deviation of the healthy losses; None: to be computed."""
        self._raised = 0
        """Steps since the loss was last usual."""
        self._high = 0
        """Those of them above the threshold."""
        self._max_raised = max(config.spike_window_steps, 2 * config.spike_patience_steps)

    def warm_up(self, losses: Sequence[float]) -> None:
        """Take the losses of the steps before the first one that will be seen, in order."""
        for loss in losses:
            self.see(0, loss, 0.0)
        self._recover()

    def see(self, step: int, loss: float, grad_norm: float) -> Spike | None:
        """Take note of a step; the spike that it completes, if any."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return Spike("nonfinite", step, _nonfinite(step, loss, grad_norm))
        if len(self._healthy) < self._min_history:
            self._admit(loss)
            return None
        usual, sigma = self._usual = self._usual or _location_and_scale(self._healthy)
        excess = (loss - usual) / (sigma * self._config.spike_threshold)
        if excess <= _RAISED:
            self._recover()
            self._admit(loss)
            return None
        self._raised += 1
        self._high += excess > 1
        if self._high >= self._config.spike_patience_steps:
            return self._spike(step, loss, usual, sigma)
        if self._raised >= self._max_raised:
            self._healthy.clear()
            self._recover()
        return None

    def _spike(self, step: int, loss: float, usual: float, sigma: float) -> Spike:
        onset = step - self._raised + 1
        self._recover()
        limit = usual + self._config.spike_threshold * sigma
        return Spike(
            "loss_spike",
            onset,
            f"the loss rose at step {onset} and has not recovered by step {step}: it is {loss:.4f}, "
            f"usual before was {usual:.4f}, and up to {limit:.4f} would be accepted",
        )

    def _admit(self, loss: float) -> None:
        self._healthy.append(loss)
        self._usual = None

    def _recover(self) -> None:
        self._raised = self._high = 0


def _location_and_scale(losses: Sequence[float] | deque[float]) -> tuple[float, float]:
    """Median, and standard deviation around a resistant line (through the halves' medians)."""
    values = np.array(losses)
    half = len(values) // 2
    early, late = _median(values[:half]), _median(values[-half:])
    slope = (late - early) / (len(values) - half)
    residuals = values - slope * np.arange(len(values))
    residuals -= _median(residuals)
    sigma = _SIGMA_PER_MAD * _median(np.abs(residuals))
    usual = _median(values)
    return usual, max(sigma, _FLOOR_RELATIVE * abs(usual), _FLOOR_ABSOLUTE)


def _median(values: _Values) -> float:
    """The upper median, found in linear time."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])


def _nonfinite(step: int, loss: float, grad_norm: float) -> str:
    struck = "the loss" if not math.isfinite(loss) else "the gradient norm"
    return f"{struck} of step {step} is no finite number: loss {loss:.4f}, gradient norm {grad_norm:.4f}"
