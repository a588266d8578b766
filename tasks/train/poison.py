"""The fault `poison_data`: samples that hold noise, wherever and whenever they are read.

It belongs to the data, not to a step or an attempt: what training reads in the fault's steps as long
as it skips nothing is noise in every attempt, so only skipping it helps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from configs.fault_schema import FaultConfig
from configs.schema import RunConfig


class Samples(Protocol):
    """What training reads of a data set."""

    num_samples: int
    """How many were asked for; there may be more."""

    def __getitem__(self, index: int, /) -> dict[str, Any]: ...


class PoisonedSamples:
    """A data set, some samples of which are random tokens with random labels."""

    def __init__(
        self,
        samples: Samples,
        config: RunConfig,
        vocab_size: int,
        announce: Callable[[FaultConfig], None],
    ) -> None:
        self._samples = samples
        self._seed = config.seed
        self._vocab_size = vocab_size
        self._announce = announce
        self._poisons = {
            index: fault for fault in poisons_of(config) for index in _indices(fault, config)
        }
        self._announced: set[int] = set()
        self.num_samples = samples.num_samples

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        sample = self._samples[index]
        fault = self._poisons.get(index)
        if fault is None:
            return sample
        if id(fault) not in self._announced:
            self._announced.add(id(fault))
            self._announce(fault)
        random = np.random.default_rng((self._seed, index))
        noise = random.integers(self._vocab_size, size=(2, len(sample["tokens"])))
        return {**sample, **dict(zip(("tokens", "labels"), torch.from_numpy(noise), strict=True))}


def poisons_of(config: RunConfig) -> Sequence[FaultConfig]:
    """The faults of the config that lie in the data."""
    return [fault for fault in config.faults if fault.kind == "poison_data"]


def _indices(fault: FaultConfig, config: RunConfig) -> range:
    """The samples that a run without faults reads in the fault's steps."""
    batch = config.train.global_batch_size
    return range((fault.step - 1) * batch, (fault.step - 1 + fault.steps) * batch)
