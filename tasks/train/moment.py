"""The numbers of the training state beside its tensors: steps, position in the data, learning rates.

`Moment.of` takes them while training stands still, in microseconds. In a checkpoint (common.pt) they lie
in megatron-core's nested structure, which takes milliseconds to make. So that is made once, as a
`CommonTemplate`, and the thread that hands a snapshot to the writer puts a moment's numbers into a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tasks.train.chunks import common_state
from tasks.train.state import TrainingState, optimizer_parts, optimizer_step

_GROUP_SETTINGS = ("lr", "weight_decay")
"""What the schedule changes in the optimizer's parameter groups."""


@dataclass(frozen=True)
class Moment:
    """The numbers of one step."""

    step: int
    consumed_samples: int
    optimizer_step: float
    schedule: dict[str, Any]
    groups: tuple[dict[str, Any], ...]
    """Of each parameter group, what the schedule changes."""

    @classmethod
    def of(cls, state: TrainingState) -> Moment:
        """Take them from the live state."""
        groups = [
            {name: group[name] for name in _GROUP_SETTINGS}
            for part in optimizer_parts(state.optimizer)
            for group in part.optimizer.param_groups
        ]
        return cls(
            step=state.step,
            consumed_samples=state.consumed_samples,
            optimizer_step=optimizer_step(state.optimizer),
            schedule=dict(state.schedule.state_dict()),
            groups=tuple(groups),
        )


class CommonTemplate:
    """megatron-core's structure around the numbers. Make it after the first step: before, the
    optimizer's count of steps has no place in it."""

    def __init__(self, state: TrainingState) -> None:
        self._structure = copy.deepcopy(common_state(state))

    def at(self, moment: Moment) -> dict[str, Any]:
        """The structure with the numbers of a moment."""
        common = copy.deepcopy(self._structure)
        common["schedule"] = moment.schedule
        common["step"] = moment.step
        common["consumed_samples"] = moment.consumed_samples
        for node in _dicts(common["optimizer"]):
            if "common_step" in node:
                node["common_step"] = torch.full_like(node["common_step"], moment.optimizer_step)
            for group, settings in zip(node.get("param_groups", ()), moment.groups, strict=False):
                group.update(settings)
                if "step" in group:
                    group["step"] = type(group["step"])(moment.optimizer_step)
        return common


def _dicts(node: Any) -> Iterator[dict[str, Any]]:
    """All dicts in a nested structure, the outer ones first."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _dicts(value)
    elif isinstance(node, list):
        for value in node:
            yield from _dicts(value)
