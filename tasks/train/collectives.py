"""Torch's record of this rank's last collectives ("flight recorder"), written when somebody asks.

A thread waits at a named pipe, which costs nothing. The launcher's agent writes into it when the job
hangs; the main thread may well be stuck in a collective then, in native code. Torch 2.13 records those
of gloo as well as of NCCL.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.files import write_json
from configs.progress import PROGRESS_VARIABLE, TRACES_VARIABLE, trigger_path
from configs.stacks import collectives_file_name

_RECORDERS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}

logger = logging.getLogger(__name__)


def answer_requests(rank: int, environment: Mapping[str, str] = os.environ) -> None:
    """Write the record whenever it is asked for, as long as this process lives."""
    folder, traces = environment.get(PROGRESS_VARIABLE), environment.get(TRACES_VARIABLE)
    if not folder or not traces:
        return
    pipe = trigger_path(Path(folder), rank)
    try:
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
    except OSError as error:
        logger.warning("collectives cannot be asked for at %s: %s", pipe, error)
        return
    path = Path(traces) / collectives_file_name(rank)
    threading.Thread(target=_answer, args=(pipe, path), name="collectives", daemon=True).start()


def _answer(pipe: Path, path: Path) -> None:
    while pipe.exists():
        with open(pipe, "rb") as requests:  # Waits here.
            requests.read()
        try:
            write_json(path, recorded())
        except Exception:
            logger.warning("the record of collectives was not written", exc_info=True)


def recorded() -> dict[str, Any]:
    """Each backend's record, where this build of torch keeps one."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dumps = {name: getattr(c10d, function, None) for name, function in _RECORDERS.items()}
    return {
        name: json.loads(dump(includeCollectives=True, onlyActive=False))
        for name, dump in dumps.items()
        if dump is not None
    }
