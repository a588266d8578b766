"""The command that starts a distributed job's ranks on this node: torchrun, run by our agent.

No port is fixed, so jobs that start at the same time cannot collide: torchrun's own rendezvous is
in a file of the job (over TCP it would read pickles from an open port), and the store for the ranks
(MASTER_ADDR, MASTER_PORT) is on a port that the kernel picks as torchrun binds it. That port is
reachable from other machines, which torchrun cannot change. Addresses are given as 127.0.0.1:
nothing depends on what the machine's name resolves to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from infra.launch import leash
from infra.launch.base import JobSpec

LOOPBACK = "127.0.0.1"
MONITOR_INTERVAL_S = 0.1
AGENT_MODULE = "infra.launch.agent"

ENVIRONMENT_DEFAULTS = {"GLOO_SOCKET_IFNAME": "lo"}
"""For ranks on one node: gloo would ask for the address of the machine's name."""


def single_node_command(spec: JobSpec, job_dir: Path) -> tuple[str, ...]:
    """Program and arguments that run `spec` under torchrun on one node, torchrun's files in `job_dir`."""
    return (
        sys.executable,
        "-P",
        "-m",
        AGENT_MODULE,
        "--nnodes=1",
        f"--nproc-per-node={spec.processes_per_node}",
        "--max-restarts=0",
        f"--monitor-interval={MONITOR_INTERVAL_S}",
        *meet_in_file(job_dir / "rendezvous"),
        f"--log-dir={job_dir / 'torchrun'}",
        str(Path(leash.__file__).resolve()),
        *spec.argv,
    )


def meet_in_file(path: Path) -> tuple[str, ...]:
    """torchrun's arguments by which ranks on one node meet without a port that is chosen beforehand."""
    return (
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={path}",
        "--rdzv-conf=store_type=file",
        "--rdzv-id=job",
        f"--local-addr={LOOPBACK}",
    )
