"""Names and types of the files that tell what each rank was doing when its job hung, in attempts/N/job/.

stacks.request                       the newest request for them
stacks/rank_RRRRR.json               one rank: position, state, stack; and of its Python child processes
stacks/node_NAME.json                written last by each node: the ranks that it has asked
stacks/collectives_rank_RRRRR.json   torch's own record of the rank's last collectives, where there is one
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from configs.records import Record

REQUEST_NAME = "stacks.request"
STACKS_FOLDER = "stacks"
RANK_FILES = "rank_*.json"
"""All ranks' files, as a pattern."""


class Frame(Record):
    """One call on a stack."""

    function: str
    file: str
    line: int


class ProcessStack(Record):
    """The stack of one process, or why there is none."""

    pid: int
    command: str = ""
    state: str = ""
    """The kernel's: running, sleeping, stopped, disk-sleep, zombie; empty: it has ended."""
    taken_by: Literal["py-spy", "faulthandler", ""] = ""
    frames: list[Frame] = Field(default_factory=list)
    """Of the main thread, innermost first."""
    stack: str = ""
    """All threads, for people."""
    error: str = ""
    """Why there is no stack."""


class RankStack(ProcessStack):
    """rank_RRRRR.json."""

    request: str
    """The request that it answers."""
    rank: int
    node: str
    taken_at: float
    step: int | None = None
    """The step that it worked on; None: it keeps no record of its progress."""
    phase: str = ""
    since: float | None = None
    """When it entered the phase."""
    children: list[ProcessStack] = Field(default_factory=list)


class NodeAnswer(Record):
    """node_NAME.json."""

    request: str
    node: str
    ranks: list[int]


def rank_file_name(rank: int) -> str:
    """Name of a rank's file."""
    return f"rank_{rank:05d}.json"


def node_file_name(node: str) -> str:
    """Name of a node's file."""
    return f"node_{node}.json"


def collectives_file_name(rank: int) -> str:
    """Name of the file with a rank's collectives."""
    return f"collectives_rank_{rank:05d}.json"


def read_request(job_dir: Path) -> str:
    """The newest request; empty when there was none."""
    try:
        return (job_dir / REQUEST_NAME).read_text().strip()
    except FileNotFoundError:
        return ""
