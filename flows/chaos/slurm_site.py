"""Trials on a local Slurm cluster: two nodes of it train, and nodes, daemons and jobs are struck.

Beside the cluster stands an administrator, who does what a site's service manager does: a daemon that
has been away for as long as its strike wanted is started again. Nodes are repaired after the trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from configs.rundir import RunDir
from flows.chaos.schedule import Plan, Strike
from flows.chaos.setup import INTERVAL_STEPS, RANKS, STEPS
from flows.chaos.site import Aim, aim_at, processes_of
from flows.chaos.slurm_audit import audit
from flows.chaos.slurm_schedule import make_slurm_plans
from infra.launch.slurm_record import SlurmFiles, SlurmRecord, node_records, read
from infra.slurm.cluster import LocalCluster
from infra.slurm.daemons import ClusterError

PARTITION = "low"
"""The one whose jobs are preempted by those of the other ones."""
_WARNING_S = 30
_LEFT_S = 36
"""From a strike to the time limit: Slurm looks every 30 s, and warns in time for that."""
_REPAIR_LIMIT_S = 180.0
_PREEMPTOR_S = 3


@dataclass(frozen=True)
class DeedAim:
    """A node, a daemon or a job of the cluster, and what is done to it."""

    stands: Callable[[], bool]
    deed: Callable[[], None]
    pid: int = 0

    def is_there(self) -> bool:
        return self.stands()

    def strike(self) -> bool:
        with suppress(ClusterError):  # the job has just ended, or slurmctld is away
            self.deed()
            return True
        return False


class SlurmSite:
    """A cluster that is the trials' own, or one that was brought up for trying things out."""

    name = "slurm"
    trial_limit_s = 900.0

    def __init__(self, cluster: LocalCluster, token_file: Path) -> None:
        self._cluster, self._token_file = cluster, token_file
        self._due: list[tuple[float, Callable[[], None]]] = []

    def config(self) -> dict[str, Any]:
        conf = self._cluster.settings.conf
        slurm = {
            "url": self._cluster.url,
            "token_file": str(self._token_file),
            "scontrol": ["env", f"SLURM_CONF={conf}", "scontrol"],
            "network_interface": "lo",
            "partition": PARTITION,
            "memory_per_node_gib": 4,
            "time_limit_minutes": 60,
            "warning_s": _WARNING_S,
            "poll_interval_s": 0.5,
        }
        check = {"round_timeout_s": 20, "start_timeout_s": 90, "slow_ratio": 1000, "trials": 2}
        return {
            "launcher": {"kind": "slurm", "nodes": RANKS, "processes_per_node": 1, "slurm": slurm},
            # So long that Slurm notices what is done to nodes and limits before training is done.
            "train": {"global_batch_size": 128},
            # A lost node is Slurm's to notice, before the silence counts as a hang.
            "recovery": {
                "hang_timeout_s": 120,
                "min_hang_timeout_s": 60,
                "startup_timeout_s": 180,
                "node_check": check,
            },
        }

    def plans(self, seed: int, trials: int) -> list[Plan]:
        return make_slurm_plans(
            seed, trials, steps=STEPS, interval_steps=INTERVAL_STEPS, ranks=RANKS
        )

    # --- strikes ----------------------------------------------------------------------------------

    def aim(self, run: RunDir, strike: Strike, flow_pid: int) -> Aim | None:
        cluster = self._cluster
        if strike.target == "flow":
            return aim_at([], strike, flow_pid)
        if strike.target == "slurmctld":
            return self._daemon(strike, cluster.stop_controller, cluster.start_controller)
        if strike.target == "slurmrestd":
            return self._daemon(strike, cluster.stop_rest, cluster.start_rest)
        attempts = run.attempts()
        if not attempts:
            return None
        files = SlurmFiles(attempts[-1].job_dir)
        record = read(files.record, SlurmRecord)
        if record is None or record.ended is not None:
            return None
        if strike.target == "rank":
            job_dir = str(files.job_dir.relative_to(run.path))
            return aim_at(processes_of(run, below=job_dir), strike, flow_pid)
        live = {n.rank: n.node for n in node_records(files, record.job_id) if not n.state.final}
        if strike.rank not in live:
            return None
        node = live[strike.rank]
        deeds: dict[str, Callable[[], None]] = {
            "SIGKILL": lambda: cluster.kill_node(node),
            "preemption": lambda: self._preempt(node),
            "time limit": lambda: self._limit(record.job_id),
        }
        return DeedAim(lambda: self._runs(record.job_id), deeds[strike.signal])

    def _daemon(
        self, strike: Strike, stop: Callable[[], None], start: Callable[[], None]
    ) -> Aim | None:
        process = self._cluster.process(strike.target)
        if process is None:
            return None

        def deed() -> None:
            stop()
            self._due.append((time.monotonic() + strike.away_s, start))

        return DeedAim(process.is_running, deed, process.pid)

    def _runs(self, job_id: int) -> bool:
        with suppress(ClusterError):
            state = self._cluster.command(
                "squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%T"
            )
            return state.strip() == "RUNNING"
        return False

    def _preempt(self, node: str) -> None:
        """A job that comes first wants one of the job's nodes, alone, for a moment."""
        partition = "main" if node in self._cluster.settings.node_names else "cpu"
        where = (f"--partition={partition}", f"--nodelist={node}", "--exclusive", "--time=1")
        self._cluster.command(
            "sbatch", *where, "--output=/dev/null", "--wrap", f"sleep {_PREEMPTOR_S}"
        )

    def _limit(self, job_id: int) -> None:
        """The job's time is nearly over, and it will be warned."""
        end = datetime.now() + timedelta(seconds=_LEFT_S)
        self._cluster.command("scontrol", "update", f"jobid={job_id}", f"endtime={end:%FT%T}")

    # --- the administrator ------------------------------------------------------------------------

    def tend(self) -> None:
        self._bring_back(time.monotonic())

    def _bring_back(self, until: float) -> None:
        for due in [due for due in self._due if due[0] <= until]:
            self._due.remove(due)
            due[1]()

    def put_right(self, run: RunDir) -> dict[str, Any]:
        self._bring_back(float("inf"))
        found = audit(self._cluster, run)
        self._cluster.repair(timeout_s=_REPAIR_LIMIT_S)
        return found
