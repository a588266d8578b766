"""A node's program in a node check: does what the flow orders, one probe after another.

    python -m tasks.recover.nodecheck_job FOLDER --processes 8 --idle-timeout-s 300
    python -m tasks.recover.nodecheck_job FOLDER --players 4 ...     # several nodes on one machine

It imports no torch and touches no device itself, so it outlives whatever its probes run into.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from configs.node import NODE_VARIABLE, node_name
from configs.nodecheck import NodeAnswer, RoundOrder
from tasks.recover.nodecheck_child import ProbeTask, run_probe
from tasks.recover.nodecheck_files import CheckFiles

PROBE_MODULE = "tasks.recover.nodecheck_probe"
_CHECK_S = 0.2
_KILL_MARGIN_S = 3.0
"""A probe knows its own limits; then it is killed."""
_KILLED_S = 2.0
_LEAVE_S = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the flow says that it is done; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tasks.recover.nodecheck_job")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1, help="of each probe on this node")
    parser.add_argument("--players", type=int, help="play so many nodes on this machine")
    parser.add_argument("--device", type=int, default=0, help="the first GPU of this node")
    parser.add_argument("--idle-timeout-s", type=float, default=300.0)
    options = parser.parse_args(arguments)
    if options.players:
        return _play(options)
    node = Node(CheckFiles(options.folder), node_name(), options.processes, options.device)
    return node.serve(options.idle_timeout_s)


def player_names(count: int) -> list[str]:
    """Names of the nodes that one machine plays."""
    return [f"{os.uname().nodename}-{number}" for number in range(count)]


def _play(options: argparse.Namespace) -> int:
    """One process for each node, which are on their own: one that dies is dead."""
    started = []
    for device, name in enumerate(player_names(options.players)):
        command = [sys.executable, "-P", "-m", "tasks.recover.nodecheck_job", str(options.folder)]
        command += [f"--device={device}", f"--idle-timeout-s={options.idle_timeout_s}"]
        environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} | os.environ
        started.append(subprocess.Popen(command, env=environment | {NODE_VARIABLE: name}))
    done = CheckFiles(options.folder).done
    leave_s = math.inf
    while any(process.poll() is None for process in started) and time.monotonic() < leave_s:
        if done.exists():
            # One that is stopped would never leave.
            leave_s = min(leave_s, time.monotonic() + _LEAVE_S)
        time.sleep(_CHECK_S)
    for process in started:
        process.kill()
        process.wait()
    return 0 if done.exists() else 1


@dataclass
class Node:
    """This node, in one check."""

    files: CheckFiles
    name: str
    processes: int = 1
    first_device: int = 0

    def serve(self, idle_timeout_s: float) -> int:
        """Answer each order; returns 0 when the flow has said that it is done, 1 when it is silent."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PROBE_MODULE])
        number, heard_s = 0, time.monotonic()
        while not self.files.done.exists():
            order = self.files.order(number)
            if order is None:
                if time.monotonic() - heard_s > idle_timeout_s:
                    print(f"{self.name}: no order for {idle_timeout_s:g} s: leaving", flush=True)
                    return 1
                time.sleep(_CHECK_S)
                continue
            self._obey(order, context)
            number, heard_s = number + 1, time.monotonic()
        return 0

    def _obey(self, order: RoundOrder, context: ForkServerContext) -> None:
        for index, group in enumerate(order.groups):
            if self.name in group:
                answer = self._probe(order, index, group, context)
                print(f"{self.name}: round {order.number} with {group}: {answer}", flush=True)
                self.files.reply(order.number, self.name, answer)

    def _probe(
        self, order: RoundOrder, index: int, group: Sequence[str], context: ForkServerContext
    ) -> NodeAnswer:
        """Run this node's processes of a probe to their end, which comes in time whatever happens."""
        place = group.index(self.name)
        meeting = self.files.meeting_path(order.number, index) if len(group) > 1 else None
        running: list[tuple[ForkServerProcess, Connection]] = []
        for local in range(self.processes):
            task = ProbeTask(
                size=order.size,
                local_rank=self.first_device + local,
                rank=place * self.processes + local,
                world_size=len(group) * self.processes,
                meeting=meeting,
            )
            results, theirs = context.Pipe(duplex=False)
            process = context.Process(target=run_probe, args=(task, theirs), daemon=True)
            process.start()
            theirs.close()
            running.append((process, results))
        deadline_s = time.monotonic() + order.size.timeout_s + _KILL_MARGIN_S
        answers = [_end_of(process, results, deadline_s) for process, results in running]
        return _together(answers)


def _end_of(process: ForkServerProcess, results: Connection, deadline_s: float) -> NodeAnswer:
    """The process's answer, or how it ended without one."""
    answer = None
    try:
        if wait([results], max(0.0, deadline_s - time.monotonic())):
            answer = NodeAnswer.model_validate_json(results.recv_bytes())
        else:
            answer = NodeAnswer(ok=False, reason="its probe did not end in time and was killed")
    except EOFError:
        process.join(_KILLED_S)
        answer = NodeAnswer(ok=False, reason=f"its probe died: exit code {process.exitcode}")
    finally:
        results.close()
    process.kill()
    # One that hangs in a driver cannot be killed; it must not hold this node up.
    process.join(_KILLED_S)
    return answer


def _together(answers: Sequence[NodeAnswer]) -> NodeAnswer:
    """One answer out of all processes': the first fault, the longest times."""
    faults = [answer for answer in answers if not answer.ok]
    if faults:
        return next((answer for answer in faults if answer.own_fault), faults[0])
    return NodeAnswer(
        ok=True,
        matmul_s=max((a.matmul_s for a in answers if a.matmul_s is not None), default=None),
        gather_s=max((a.gather_s for a in answers if a.gather_s is not None), default=None),
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # No waiting for probes that cannot be killed.
    os._exit(code)
