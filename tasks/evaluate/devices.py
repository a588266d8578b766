"""What this node has to run a model: GPUs and packages, and whose turn it is there. Imports none of them."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from configs.errors import ConfigError
from configs.files import file_lock

SLOTS_VARIABLE = "OVERLAND_EVALUATION_SLOTS"
"""A folder of locks: of several evaluations on this machine, one at a time has a device."""
_DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
_OTHER_SIGNS = (Path("/dev/nvidia0"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Of GPUs that the driver's folder does not tell of: in some containers, of AMD, in Windows' Linux."""


def visible_gpus() -> list[int]:
    """Numbers of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        if not re.fullmatch(r"\s*(\d+\s*(,\s*\d+\s*)*)?", visible):
            raise ConfigError(
                f"CUDA_VISIBLE_DEVICES={visible} names GPUs by other than numbers: say which to use"
            )
        return [int(number) for number in visible.split(",") if number.strip()]
    return list(range(len(list(_DRIVER_FOLDER.iterdir())))) if _DRIVER_FOLDER.is_dir() else []


def check_gpus(numbers: Sequence[int], count: int | None = None) -> None:
    """ConfigError for GPUs that a node of `count`, or this machine as far as its drivers tell, has not."""
    if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
        given = ",".join(map(str, numbers))
        raise ConfigError(f"--gpus {given} must be different numbers, from 0 on, like 0,1")
    if count is None:
        count = _known_count()
    if count is None or not (missing := [number for number in numbers if number >= count]):
        return
    if not count:
        raise ConfigError(
            f"--gpus {missing[0]} is the number of a GPU, and there is none: give --gpus none for the "
            "CPU, and --workers for how many processes"
        )
    raise ConfigError(
        f"--gpus {missing[0]} is no GPU there: numbers go up to {count - 1}; all and none can be given too"
    )


def _known_count() -> int | None:
    """How many GPUs this machine has; None where that is not known."""
    if _DRIVER_FOLDER.is_dir():
        return len(list(_DRIVER_FOLDER.iterdir()))
    return None if any(sign.exists() for sign in _OTHER_SIGNS) else 0


def device_name() -> str:
    """What kind of GPU the node has, in a word."""
    for information in sorted(_DRIVER_FOLDER.glob("*/information")):
        for line in information.read_text().splitlines():
            if line.startswith("Model:"):
                return re.sub(r"[^a-z0-9]+", "-", line.removeprefix("Model:").strip().lower())
    return "gpu"


def check_backend(name: str) -> None:
    """ConfigError when the backend is not installed."""
    package = {"hf": "transformers", "vllm": "vllm"}[name]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"evaluate.backend: {name} needs the package {package}, which is not installed here"
        )


@contextmanager
def slot(worker: str) -> Iterator[None]:
    """The worker's device, when no worker of another evaluation has its model there any more."""
    folder = os.environ.get(SLOTS_VARIABLE)
    if not folder:
        yield
        return
    with file_lock(Path(folder) / f"{worker}.lock"):
        yield
