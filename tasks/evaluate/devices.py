"""What this node has to run a model: GPUs and packages, and whose turn it is there. Imports none of them."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import ConfigError
from configs.files import file_lock

SLOTS_VARIABLE = "OVERLAND_EVALUATION_SLOTS"
"""A folder of locks: of several evaluations on this machine, one at a time has a device."""
_DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")


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
