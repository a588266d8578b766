"""Run as a program of its own, here or on a node: what torch is and what it can do.

    probe_torch.py torch | megatron

Prints one JSON object as its last line. Libraries that take the process down take only this one.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module, metadata
from typing import Any

_CHECK_ELEMENTS = 1024


def main(what: str) -> None:
    try:
        answer = look_at_torch() if what == "torch" else look_at_megatron()
    except Exception as error:  # the answer is the error
        words = " ".join(str(error).split())
        answer = {"error": f"{type(error).__name__}: {words}"[:400]}
    print(json.dumps(answer), flush=True)
    # Not through the libraries' own clean-up, which may hang.
    os._exit(0)


def look_at_torch() -> dict[str, Any]:
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")

    answer: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "gpus": [],
        "gpu_error": None,
        "nccl": None,
        "nccl_error": None,
    }
    if dist.is_available() and dist.is_nccl_available():
        try:
            answer["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        except Exception:  # a build that has it by name only
            answer["nccl"] = "of unknown version"
    try:
        torch.cuda.init()
    except Exception as error:
        answer["gpu_error"] = " ".join(str(error).split())[:300] if answer["cuda"] else None
        return answer
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        answer["gpus"].append({"name": properties.name, "bytes": properties.total_memory})
    if answer["nccl"] and answer["gpus"]:
        answer["nccl_error"] = _add_up(torch)
    return answer


def _add_up(torch: Any) -> str | None:
    """An all-reduce over all GPUs of this process; what is wrong with it."""
    count = torch.cuda.device_count()
    try:
        tensors = [torch.ones(_CHECK_ELEMENTS, device=f"cuda:{i}") for i in range(count)]
        torch.cuda.nccl.all_reduce(tensors)
        torch.cuda.synchronize()
        sums = [float(tensor.sum()) for tensor in tensors]
    except Exception as error:
        return " ".join(str(error).split())[:300]
    return None if sums == [float(count * _CHECK_ELEMENTS)] * count else f"wrong sums {sums}"


def look_at_megatron() -> dict[str, Any]:
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  (this file may run where Overland is not installed)
    import_module("tasks.train.mcore")
    return {"version": metadata.version("megatron-core")}


if __name__ == "__main__":
    main(sys.argv[1])
