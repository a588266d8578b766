"""Asking the ranks of a job what they are doing: the request, and the answers of the job's agents.

A file in the job's folder is the request, files beside it are the answers, so that launcher and agent
need nothing else in common, on whatever nodes they are.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from configs.files import write_text
from configs.node import node_name
from configs.progress import read_position, record_path, trigger_path
from configs.rundir import read_record, write_record
from configs.stacks import (
    RANK_FILES,
    REQUEST_NAME,
    STACKS_FOLDER,
    NodeAnswer,
    RankStack,
    node_file_name,
    rank_file_name,
    read_request,
)
from infra.launch.process_stack import is_python, stack_of

REQUEST_CHECK_S = 0.5
NCCL_PIPE_PREFIX = "nccl_"
_ANSWER_CHECK_S = 0.1
_AT_ONCE = 8


# --- the launcher's side --------------------------------------------------------------------------


def request_stacks(job_dir: Path, nodes: Iterable[str], *, timeout_s: float) -> list[Path]:
    """Ask the agents on `nodes` and wait for all of them; the ranks' files that are there by then."""
    request = uuid.uuid4().hex[:12]
    folder = job_dir / STACKS_FOLDER
    write_text(job_dir / REQUEST_NAME, request)
    missing = {folder / node_file_name(node) for node in nodes}
    deadline = time.monotonic() + timeout_s
    while missing and time.monotonic() < deadline:
        missing = {path for path in missing if not _answers(path, NodeAnswer, request)}
        time.sleep(_ANSWER_CHECK_S)
    return [p for p in sorted(folder.glob(RANK_FILES)) if _answers(p, RankStack, request)]


def _answers(path: Path, kind: type[NodeAnswer | RankStack], request: str) -> bool:
    record = read_record(path, kind)
    return record is not None and record.request == request


# --- the agent's side -----------------------------------------------------------------------------


def answer_requests(
    job_dir: Path, progress: Path, ranks: Callable[[], dict[int, psutil.Process]]
) -> None:
    """Answer each request about the ranks of this node; never returns."""
    answered = ""
    while True:
        request = read_request(job_dir)
        if request not in ("", answered):
            answer(job_dir / STACKS_FOLDER, request, progress, ranks())
            answered = request
        time.sleep(REQUEST_CHECK_S)


def answer(folder: Path, request: str, progress: Path, ranks: dict[int, psutil.Process]) -> None:
    """Write a file for each rank, and the node's when all are done."""
    node = node_name()
    _ask_for_collectives(progress, ranks)

    def one(rank: int) -> None:
        stack = _rank_stack(request, node, rank, ranks[rank], progress)
        write_record(folder / rank_file_name(rank), stack)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, ranks))
    done = NodeAnswer(request=request, node=node, ranks=sorted(ranks))
    write_record(folder / node_file_name(node), done)


def _rank_stack(
    request: str, node: str, rank: int, process: psutil.Process, progress: Path
) -> RankStack:
    position = read_position(record_path(progress, rank))
    if position is not None and position.pid != process.pid:
        position = None
    children: list[psutil.Process] = []
    with suppress(psutil.Error):
        children = [child for child in process.children(recursive=True) if is_python(child)]
    return RankStack(
        **dict(stack_of(process)),
        request=request,
        rank=rank,
        node=node,
        taken_at=time.time(),
        step=position.step if position else None,
        phase=position.phase if position else "",
        since=position.since if position else None,
        children=[stack_of(child) for child in children],
    )


def _ask_for_collectives(progress: Path, ranks: Iterable[int]) -> None:
    """Have torch's flight recorders written, by the ranks' own threads and by NCCL's."""
    for rank in ranks:
        for pipe in (trigger_path(progress, rank), progress / f"{NCCL_PIPE_PREFIX}{rank}.pipe"):
            with suppress(OSError):  # Nobody listens there: not this backend, or not yet.
                descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                os.write(descriptor, b"1\n")
                os.close(descriptor)
