"""The failures of `overland chaos --failures`: what failures.yaml says, and the run that meets each.

Where a failure has no rank or step of its own, both follow from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from configs.errors import InputError
from configs.records import ActionKind
from flows.chaos.setup import RANKS, write_config

STEPS = 12
INTERVAL_STEPS = 4
_STRUCK_STEPS = (6, 7, 8)
"""All between two checkpoints, the first of which is there by then."""
_HAS_NO_PLACE = ("poison_data",)
_SETTINGS: dict[str, Any] = {
    "model.num_layers": 2,
    "model.hidden_size": 32,
    "model.ffn_hidden_size": 64,
    "model.sequence_length": 32,
    "train.steps": STEPS,
    "train.global_batch_size": 8,
    "train.micro_batch_size": 2,
    "train.validation_interval_steps": 6,
    "train.warmup_steps": 2,
    "checkpoint.interval_steps": INTERVAL_STEPS,
    "recovery.max_restarts": 5,
    "recovery.max_restarts_per_cause": 3,
    # Longer than what a failing program may take: only a rank that hangs is to look like it.
    "recovery.min_hang_timeout_s": 12,
}


class Failure(BaseModel):
    """One failure and what is right for it; the fields are explained in failures.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    failure_class: str = Field(alias="class")
    action: ActionKind
    how: Literal["caused", "written"]
    python: str | None = None
    words: str | None = None
    """What the program finds as WORDS."""
    faults: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    same: bool = True

    @property
    def needs_a_person(self) -> bool:
        """Whether a restart would be wrong."""
        return self.action == "fix_by_user" or (
            self.action == "none" and self.failure_class != "NoFailure"
        )


@dataclass(frozen=True)
class FailureTrial:
    """A failure with its config."""

    number: int
    failure: Failure
    config_path: Path
    step: int
    """Of the last fault."""

    @property
    def name(self) -> str:
        return self.failure.name


@cache
def known_failures() -> tuple[Failure, ...]:
    """All failures, in the order of the file."""
    entries = yaml.safe_load(Path(__file__).with_name("failures.yaml").read_text())
    return tuple(Failure.model_validate(entry) for entry in entries)


def chosen_failures(wanted: Sequence[str]) -> list[tuple[int, Failure]]:
    """The failures of these classes, or of these names, with their numbers; all where none is named."""
    numbered = list(enumerate(known_failures(), start=1))
    if not wanted:
        return numbered
    known = {w for _, f in numbered for w in (f.failure_class, f.name)}
    for word in wanted:
        if word not in known:
            close = get_close_matches(word, known, n=1) or ["KeyError"]
            raise InputError(
                f"--classes: {word!r} is no failure class or failure that can be caused; "
                f"{close[0]} is one"
            )
    return [(n, f) for n, f in numbered if {f.failure_class, f.name} & set(wanted)]


def base_config(folder: Path, corpus: Path, seed: int) -> dict[str, Any]:
    """The run that all failures strike: a very small model, a few steps."""
    config: dict[str, Any] = yaml.safe_load(write_config(folder, corpus, seed).read_text())
    _set(config, _SETTINGS)
    # No rules or cases of whoever runs this.
    config["diagnose"] = {"store": str(folder / "cases")}
    return config


def write_trial(
    folder: Path, base: dict[str, Any], number: int, failure: Failure, seed: int
) -> FailureTrial:
    """Write the trial's config and programs. Their names tell nothing: they stand in the tracebacks."""
    draw = random.Random(f"{seed}-{failure.name}")  # noqa: S311
    step, rank = draw.choice(_STRUCK_STEPS), draw.randrange(RANKS)
    faults = [dict(fault) for fault in failure.faults]
    if failure.python is not None:
        faults.append({"kind": "script", "python": failure.python})
    for place, fault in enumerate(faults):
        fault.setdefault("step", step)
        if fault["kind"] not in _HAS_NO_PLACE:
            fault.setdefault("rank", rank)
        if "python" in fault:
            program = folder / f"hook_{number:03d}_{place}.py"
            words = "" if failure.words is None else f"WORDS = {failure.words!r}\n"
            program.write_text(words + fault.pop("python"))
            fault["script"] = str(program)
    config = yaml.safe_load(yaml.safe_dump(base))
    _set(config, failure.config)
    config["faults"] = faults
    path = folder / f"config_{number:03d}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return FailureTrial(number, failure, path, max(fault["step"] for fault in faults))


def _set(config: dict[str, Any], settings: dict[str, Any]) -> None:
    """Put values at their dotted keys."""
    for key, value in settings.items():
        section, _, name = key.partition(".")
        config.setdefault(section, {})[name] = value
