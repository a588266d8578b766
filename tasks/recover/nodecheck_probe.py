"""One probe of a node check: matrix products on one device, and all-gathers with the other members' devices.

It runs in a process of its own that the node's program kills when the time is over: nothing that can
happen here (a hang in a driver, a peer that is stopped, a crash) reaches anything else.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from statistics import median

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from configs.node import node_name
from configs.nodecheck import NodeAnswer, ProbeSize
from configs.rundir import read_record, write_record
from tasks.recover.nodecheck_child import ProbeTask
from tasks.recover.nodecheck_files import Meeting

_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
_MIB = 1 << 20
_CHECK_S = 0.05
_GOODBYE_S = 5.0
_ALARM_MARGIN_S = 15.0
"""After which the process ends itself, should the node's program be gone."""


class OwnFaultError(Exception):
    """What this node's own device did wrong."""


class PeerFaultError(Exception):
    """What another member of the group said about itself."""


def run(task: ProbeTask, results: Connection) -> None:
    """Do it, send the answer, and leave without waiting for anything."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(task.size.timeout_s + _ALARM_MARGIN_S))
    try:
        answer = probe(task)
    except Exception as error:
        answer = NodeAnswer(ok=False, reason=_words(error))
    results.send_bytes(answer.model_dump_json().encode())
    results.close()
    os._exit(0)


def probe(task: ProbeTask) -> NodeAnswer:
    """Work alone first, then with the others."""
    deadline_s = time.monotonic() + task.size.timeout_s
    fault, device = "", torch.device("cpu")
    try:
        device = _device(task.local_rank)
        alone_s = [_multiply(task.size, device) for _ in range(task.size.trials + 1)][1:]
    except Exception as error:
        fault, alone_s = _words(error), []
    if task.meeting is None:
        matmul_s = median(alone_s) if alone_s else None
        return NodeAnswer(ok=not fault, own_fault=bool(fault), reason=fault, matmul_s=matmul_s)
    try:
        matmul_s, gather_s = _together(task, device, fault, deadline_s)
    except OwnFaultError as error:
        return NodeAnswer(ok=False, own_fault=True, reason=str(error))
    return NodeAnswer(ok=True, matmul_s=matmul_s, gather_s=gather_s)


# --- alone ----------------------------------------------------------------------------------------


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise OwnFaultError(f"there is no GPU {local_rank}: this node shows {count}")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _multiply(size: ProbeSize, device: torch.device) -> float:
    """Seconds of a matrix product; it is made twice, and must be the same to the bit."""
    on_gpu = device.type == "cuda"
    rows = size.matmul_size or (8192 if on_gpu else 512)
    generator = torch.Generator(device).manual_seed(1)
    kind = torch.bfloat16 if on_gpu else torch.float32
    left, right = (
        torch.randn(rows, rows, generator=generator, device=device).to(kind) for _ in range(2)
    )
    product: list[torch.Tensor] = []
    times_s = [_timed(lambda: product.append(left @ right), device) for _ in range(2)]
    if not torch.equal(*product) or not bool(torch.isfinite(product[0]).all()):
        raise OwnFaultError("the same matrix product gave two results")
    return min(times_s)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


# --- together -------------------------------------------------------------------------------------


def _together(
    task: ProbeTask, device: torch.device, fault: str, deadline_s: float
) -> tuple[float, float]:
    """Medians of the trials; raises what went wrong."""
    store = _meet(task, deadline_s)
    # Who cannot take part says so: the others need not wait for it in vain.
    store.set(f"ready/{task.rank}", fault)
    words = [store.get(f"ready/{rank}").decode() for rank in range(task.world_size)]
    if fault:
        raise OwnFaultError(fault)
    if any(words):
        raise PeerFaultError(f"another node of the group said: {next(filter(None, words))}")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=task.rank,
        world_size=task.world_size,
        timeout=_left(deadline_s),
    )
    matmul_s, gather_s = [], []
    _gather(task, device)
    for _ in range(task.size.trials):
        matmul_s.append(_multiply(task.size, device))
        gather_s.append(_gather(task, device))
    _leave(task, store)
    return median(matmul_s), median(gather_s)


def _meet(task: ProbeTask, deadline_s: float) -> TCPStore:
    """A store for the group, with its first process."""
    assert task.meeting is not None
    if task.rank == 0:
        address = _address()
        store = _store(address, 0, task, deadline_s)
        write_record(task.meeting, Meeting(address=address, port=store.port))
        return store
    while (meeting := read_record(task.meeting, Meeting)) is None:
        if time.monotonic() > deadline_s - _CHECK_S:
            raise TimeoutError("the group's first node has not said where to meet")
        time.sleep(_CHECK_S)
    return _store(meeting.address, meeting.port, task, deadline_s)


def _store(address: str, port: int, task: ProbeTask, deadline_s: float) -> TCPStore:
    return TCPStore(
        address,
        port,
        world_size=task.world_size,
        is_master=task.rank == 0,
        timeout=_left(deadline_s),
        wait_for_workers=False,
    )


def _address() -> str:
    """Of this node, for the others of the group."""
    name = os.environ.get(_INTERFACE_VARIABLE)
    if not name:
        return node_name()
    for address in psutil.net_if_addrs().get(name, []):
        if address.family == socket.AF_INET:
            return str(address.address)
    raise OwnFaultError(f"this node has no network interface {name!r} with an IPv4 address")


def _gather(task: ProbeTask, device: torch.device) -> float:
    """Seconds of an all-gather, for each part that came from elsewhere (groups differ in their size);
    what arrives must be what was sent."""
    mib = task.size.gather_mib or (64 if device.type == "cuda" else 4)
    count = max(1, int(mib * _MIB / 4))
    mine = _pattern(count, task.rank, device)
    parts = [torch.empty_like(mine) for _ in range(task.world_size)]
    time_s = _timed(lambda: dist.all_gather(parts, mine), device)
    for rank, part in enumerate(parts):
        if not torch.equal(part, _pattern(count, rank, device)):
            raise RuntimeError(f"an all-gather gave other data than process {rank} had sent")
    return time_s / (task.world_size - 1)


def _pattern(count: int, rank: int, device: torch.device) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32, device=device) * (rank + 1) + rank


def _leave(task: ProbeTask, store: TCPStore) -> None:
    """Nobody hangs up while another still reads; the first process has the store and leaves last."""
    with suppress(RuntimeError):
        store.set(f"done/{task.rank}", "")
        limit = timedelta(seconds=_GOODBYE_S)
        store.wait([f"done/{rank}" for rank in range(task.world_size)], limit)
        store.set(f"left/{task.rank}", "")
        if task.rank == 0:
            store.wait([f"left/{rank}" for rank in range(task.world_size)], limit)


def _left(deadline_s: float) -> timedelta:
    return timedelta(seconds=max(0.1, deadline_s - time.monotonic()))


def _words(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
