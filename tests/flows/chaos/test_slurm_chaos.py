"""Real trials on a real cluster: a node, the flow with slurmrestd, and a job's time limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.chaos.run import run_chaos
from flows.chaos.schedule import Moment, Plan, Strike
from flows.chaos.slurm_site import SlurmSite
from infra.slurm.packages import missing_packages
from infra.slurm.temporary import temporary_cluster

pytestmark = [pytest.mark.slow, pytest.mark.soak]

PLANS = [
    Plan(1, (Strike("node", "SIGKILL", 1, Moment("commit", step=10, stage="parts")),), False),
    Plan(
        2,
        (
            Strike("slurmrestd", "SIGKILL", 0, Moment("submit"), away_s=10.0),
            Strike("flow", "SIGKILL", 0, Moment("later", fraction=0.02)),
        ),
    ),
    Plan(3, (Strike("job", "time limit", 0, Moment("any", fraction=0.2)),), False),
]


def test_a_night_in_short(tmp_path: Path) -> None:
    if missing := missing_packages():
        pytest.skip(f"not installed: {' '.join(missing)}; `make slurm-packages` installs them")
    said: list[str] = []
    with temporary_cluster() as (cluster, token_file):
        site = SlurmSite(cluster, token_file)
        report = run_chaos(
            trials=len(PLANS),
            seed=5,
            folder=tmp_path / "c",
            say=said.append,
            plans=PLANS,
            site=site,
        )
    explained = "\n".join(said)
    assert (report["trials"], report["identical"], report["lost_steps"]) == (3, 3, 0), explained
    assert (report["duplicate_jobs"], report["orphan_jobs"]) == (0, 0), explained
    assert report["failed"] == [], explained
    node, flow, limit = report["details"]
    assert node["outcomes"] == ["NodeFailure", "completed"]
    assert node["jobs"] == 3, "two attempts, and the check of the nodes between them"
    assert (flow["outcomes"], flow["flow_starts"], flow["jobs"]) == (["completed"], 2, 1)
    assert limit["outcomes"] == ["stopped", "completed"]
    assert limit["restarts"][0]["resumed_step"] > 0
