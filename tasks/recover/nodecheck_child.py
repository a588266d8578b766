"""What starts a probe in its own process, without torch in the one that asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from configs.nodecheck import ProbeSize


@dataclass(frozen=True)
class ProbeTask:
    """What one process of a probe has to do."""

    size: ProbeSize
    local_rank: int = 0
    """Number of the GPU to use, where there are GPUs."""
    rank: int = 0
    world_size: int = 1
    meeting: Path | None = None
    """Where the processes of the group meet; None for a node alone."""


def run_probe(task: ProbeTask, results: Connection) -> None:
    """In the new process, whose parent has imported torch already."""
    from tasks.recover.nodecheck_probe import run

    run(task, results)
