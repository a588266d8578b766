"""What runs on each node of a Slurm job: starts the program there, sees to its end, records it.

    python -m infra.launch.slurm_node --job-dir DIR --key KEY --name NAME -- PROGRAM ARGUMENTS...

It is to a node what the supervisor is to a local job, and does the same by the same code: time limits of
seconds, requests to end the job with time to save, no process left behind. Slurm's own limits and
signals come on top. With --processes-per-node the program is the agent, which starts the ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from configs.errors import EXIT_CONTINUE, LaunchError
from configs.node import NODE_VARIABLE
from infra.launch import leash, supervisor, torchrun
from infra.launch.base import JobSpec
from infra.launch.processes import become_subreaper
from infra.launch.record import JobRecord
from infra.launch.slurm_record import (
    NodeRecord,
    Rendezvous,
    SlurmFiles,
    claim,
    node_records,
    read,
    write,
)
from infra.launch.slurm_types import expand

EXIT_NOT_MINE = 90
"""Another job has this folder."""
EXIT_REQUEUED = 91
"""Slurm has started the job a second time; a new attempt is what is wanted, after a diagnosis."""

_LEAVE_TIMEOUT_S = 120.0
"""How long a node that wants to be continued waits for the others, which Slurm would end with it."""
_FAILED_TIMEOUT_S = 5.0
"""And one that failed: the others may have a word to say about it."""
_RENDEZVOUS_TIMEOUT_S = 600.0
_CHECK_S = 0.2
_PORTS = range(20000, 32000)
"""Below those that the kernel gives to clients."""
_PORT_TRIES = 100
_reserved: list[socket.socket] = []
"""Held open until the process ends."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this process stands in its job, by Slurm's variables."""

    job_id: int
    node: str
    rank: int
    nodes: tuple[str, ...]
    restarts: int

    @classmethod
    def here(cls) -> Place:
        """Of this process."""
        nodes = expand(os.environ["SLURM_JOB_NODELIST"])
        in_step = "SLURM_STEP_ID" in os.environ
        return cls(
            job_id=int(os.environ["SLURM_JOB_ID"]),
            node=os.environ.get("SLURMD_NODENAME") or nodes[0],
            rank=int(os.environ["SLURM_NODEID"]) if in_step else 0,
            nodes=nodes if in_step else nodes[:1],
            restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        )


def main(arguments: list[str]) -> int:
    """Run the node's part of the job to its end; returns the exit code for Slurm."""
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.WATCHED_SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    options = _parser().parse_args(arguments)
    place, files = Place.here(), SlurmFiles(options.job_dir)
    if place.restarts:
        print(f"Slurm has started job {place.job_id} again: left to a new job", file=sys.stderr)
        return EXIT_REQUEUED
    # On each node, as each writes: a job on several nodes has the folder as a whole or not at all.
    if (holder := claim(files, place.job_id)) != place.job_id:
        print(f"{files.job_dir} belongs to job {holder}: nothing is done", file=sys.stderr)
        return EXIT_NOT_MINE
    os.environ[NODE_VARIABLE] = place.node
    started_at = time.time()
    argv = tuple(options.argv)
    if options.interface:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, options.interface)
    if options.processes_per_node:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        threading.Thread(target=_hand_on_warnings, daemon=True).start()
        argv = _ranks_command(options, place, files)
    order = supervisor.Order(
        files=files,
        key=options.key,
        name=options.name,
        argv=argv,
        time_limit_s=options.time_limit_s,
        low_priority=False,
        grace_s=options.grace_s,
    )
    return _run(order, place, files, started_at)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="infra.launch.slurm_node")
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--grace-s", type=float, default=10.0)
    parser.add_argument("--time-limit-s", type=float, default=float("inf"))
    parser.add_argument("--processes-per-node", type=int, default=0)
    parser.add_argument("--interface", default="")
    parser.add_argument("argv", nargs="+")
    return parser


def _run(order: supervisor.Order, place: Place, files: SlurmFiles, started_at: float) -> int:
    become_subreaper()
    record = JobRecord(
        key=order.key,
        # Of the node, as several may share one machine's memory.
        job_id=f"slurm-{place.job_id}-{place.node}",
        name=order.name,
        argv=order.argv,
        node=place.node,
        pid=os.getpid(),
        create_time=psutil.Process().create_time(),
        started_at=started_at,
    )
    mine = NodeRecord(job_id=place.job_id, node=place.node, rank=place.rank, started_at=started_at)
    write(files.node(place.node), mine)
    ended = supervisor.run(order, record)
    code = ended.exit_code if ended.exit_code is not None else 128 + (ended.signal or 0)
    update = {name: getattr(ended, name) for name in ("state", "exit_code", "signal", "reason")}
    with suppress(OSError):  # The disk is full: then Slurm's word must do.
        write(files.node(place.node), mine.model_copy(update=update | {"ended_at": ended.ended_at}))
    if code and len(place.nodes) > 1:
        _wait_for_others(
            files, place, _LEAVE_TIMEOUT_S if code == EXIT_CONTINUE else _FAILED_TIMEOUT_S
        )
    return code


def _wait_for_others(files: SlurmFiles, place: Place, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended = {r.node for r in node_records(files, place.job_id) if r.state.final}
        if ended >= set(place.nodes):
            return
        time.sleep(_CHECK_S)


def _hand_on_warnings() -> None:
    """Slurm warns the processes that it has started, which is this one: tell the agent; never returns."""
    while True:
        signal.sigwait({signal.SIGUSR1})
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGUSR1)


# --- the ranks ------------------------------------------------------------------------------------


def _ranks_command(options: argparse.Namespace, place: Place, files: SlurmFiles) -> tuple[str, ...]:
    """The agent's command line, and the environment that it needs."""
    if len(place.nodes) == 1:
        for name, value in torchrun.ENVIRONMENT_DEFAULTS.items():
            os.environ.setdefault(name, value)
        spec = JobSpec(
            key=options.key,
            name=options.name,
            argv=tuple(options.argv),
            job_dir=files.job_dir,
            processes_per_node=options.processes_per_node,
        )
        return torchrun.single_node_command(spec, files.job_dir)
    meeting = _meet(options.interface, place, files)
    return (
        sys.executable,
        "-P",
        "-m",
        torchrun.AGENT_MODULE,
        f"--nnodes={len(place.nodes)}",
        f"--node-rank={place.rank}",
        f"--nproc-per-node={options.processes_per_node}",
        "--max-restarts=0",
        f"--monitor-interval={torchrun.MONITOR_INTERVAL_S}",
        # Unlike torchrun's other rendezvous, this one reads no pickles from an open port.
        "--rdzv-backend=static",
        f"--master-addr={meeting.address}",
        f"--master-port={meeting.port}",
        "--rdzv-id=job",
        f"--rdzv-conf=timeout={_RENDEZVOUS_TIMEOUT_S:.0f}",
        f"--log-dir={files.job_dir / 'torchrun' / place.node}",
        str(Path(leash.__file__).resolve()),
        *options.argv,
    )


def _meet(interface: str, place: Place, files: SlurmFiles) -> Rendezvous:
    """Where the ranks meet: the first node says, on a port that is free there."""
    if place.rank == 0:
        address = _address_of(interface) if interface else place.node
        meeting = Rendezvous(job_id=place.job_id, address=address, port=_reserved_port())
        write(files.rendezvous, meeting)
        return meeting
    deadline = time.monotonic() + _RENDEZVOUS_TIMEOUT_S
    while time.monotonic() < deadline:
        found = read(files.rendezvous, Rendezvous)
        if found is not None and found.job_id == place.job_id:
            return found
        time.sleep(_CHECK_S)
    raise LaunchError(
        f"{place.nodes[0]} has not said where the ranks meet within {_RENDEZVOUS_TIMEOUT_S:.0f} s: is "
        f"{files.job_dir} on storage that all nodes share?"
    )


def _address_of(interface: str) -> str:
    for address in psutil.net_if_addrs().get(interface, []):
        if address.family == socket.AF_INET:
            return str(address.address)
    raise LaunchError(f"this node has no network interface {interface!r} with an IPv4 address")


def _reserved_port() -> int:
    """A port that is free here, and kept until this process ends.

    A socket that is bound and does not listen keeps it from everybody who only wants a free port, which is
    what other jobs on the node do, and not from the ranks' store: both allow the address to be used again.
    A program that insists on this very number and allows that too can still take it; the job then fails
    with EADDRINUSE, and the next attempt takes another port.
    """
    for port in random.sample(_PORTS, min(len(_PORTS), _PORT_TRIES)):
        probe = socket.socket()
        with suppress(OSError):
            probe.bind(("", port))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _reserved.append(probe)
            return port
        probe.close()
    raise LaunchError(f"no port between {_PORTS.start} and {_PORTS.stop} is free on this node")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
