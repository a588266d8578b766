"""The command that starts a distributed job's ranks on this node.

The rendezvous is on port 0: torchrun's agent listens on a free port that the kernel picks while it
binds it, so jobs that start at the same time cannot collide, and hands the open store to its ranks
(MASTER_ADDR, MASTER_PORT). Addresses are given as 127.0.0.1, so nothing depends on what the
machine's name resolves to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from infra.launch import leash
from infra.launch.base import JobSpec

LOOPBACK = "127.0.0.1"
MONITOR_INTERVAL_S = 0.1

ENVIRONMENT_DEFAULTS = {"GLOO_SOCKET_IFNAME": "lo"}
"""For ranks on one node: gloo would ask for the address of the machine's name."""


def single_node_command(spec: JobSpec, log_dir: Path) -> tuple[str, ...]:
    """Program and arguments that run `spec` under torchrun on one node; `log_dir` is torchrun's."""
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={spec.processes_per_node}",
        "--max-restarts=0",
        f"--monitor-interval={MONITOR_INTERVAL_S}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={LOOPBACK}:0",
        "--rdzv-conf=is_host=1",
        "--rdzv-id=job",
        f"--local-addr={LOOPBACK}",
        f"--log-dir={log_dir}",
        str(Path(leash.__file__).resolve()),
        *spec.argv,
    )
