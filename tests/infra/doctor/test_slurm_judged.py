"""What the doctor says of partitions, and of a job of its own that does not end; without a cluster."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from configs.errors import LaunchError
from configs.schema import LauncherConfig
from configs.slurm_schema import SlurmConfig
from infra.doctor import nodes
from infra.doctor.findings import Finding, Status
from infra.doctor.judge_nodes import judge_interface
from infra.doctor.node import network_interfaces
from infra.doctor.nodes import NodeProbe, check_nodes
from infra.doctor.slurm import judge_partitions
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus
from infra.launch.slurm_types import SlurmNode

NODES = [SlurmNode("n1", "IDLE", frozenset(), "", ("main", "low"))]


def judged(**partitions: str) -> list[tuple[Status, str]]:
    site = SlurmConfig.model_validate(partitions)
    found = judge_partitions(site, ["main", "low", "cpu"], NODES)
    return [(finding.status, finding.sentence) for finding in found]


def test_each_partition_has_to_be_there_and_to_have_nodes() -> None:
    ((status, sentence),) = judged(partition="main,low", low_priority_partition="low")
    assert status is Status.OK
    assert sentence.startswith("main with 1 node that can be used, low with 1")
    ((status, sentence),) = judged(partition="main", cpu_partition="cpus")
    assert status is Status.FAILED
    assert "'cpus' does not exist: set launcher.slurm.cpu_partition" in sentence
    ((status, sentence),) = judged(partition="main", cpu_partition="cpu")
    assert (status, sentence[:16]) == (Status.WARNING, "cpu (cpu_partiti")
    ((status, _),) = judged()
    assert status is Status.OK


def test_an_interface_has_to_be_there_and_to_have_an_address() -> None:
    there = {"lo": True, "eth0": True, "ib1": False}
    assert judge_interface("eth0", there).status is Status.OK
    found = judge_interface("ib0", there)
    assert found.status is Status.FAILED
    assert (
        found.sentence
        == "there is no 'ib0': set launcher.slurm.network_interface to one of eth0, lo"
    )
    found = judge_interface("ib1", there)
    assert (found.status, found.sentence[:26]) == (Status.FAILED, "ib1 has no IPv4 address: s")
    assert network_interfaces()["lo"] is True


# --- the doctor's own job -------------------------------------------------------------------------


class Stubborn:
    """A launcher whose job waits in the queue and cannot be cancelled."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    def nodes(self) -> list[str]:
        return ["n1"]

    def submit(self, spec: JobSpec) -> JobHandle:
        return JobHandle(spec.key, "17", spec.job_dir, time.time())

    def poll(self, handle: JobHandle) -> JobStatus:
        return JobStatus(JobState.PENDING, reason="Resources")

    def cancel(self, handle: JobHandle, *, grace_s: float) -> None:
        time.sleep(self.takes_s)
        raise LaunchError("slurmctld is away")


@pytest.mark.parametrize(
    ("takes_s", "words"), [(0.0, "slurmctld is away"), (5.0, "it has not ended within 0.1 s")]
)
def test_a_job_that_does_not_end_costs_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float, words: str
) -> None:
    launcher: Any = Stubborn(takes_s)
    monkeypatch.setattr(nodes, "slurm_launcher", lambda _: launcher)
    monkeypatch.setattr(nodes, "_END_LIMIT_S", 0.1 if takes_s else 30.0)
    probe = NodeProbe(LauncherConfig(kind="slurm"), tmp_path, queue_limit_s=0.0)
    found: list[Finding] = check_nodes(threading.Event(), probe)
    assert [finding.status for finding in found] == [Status.SKIPPED, Status.WARNING]
    assert "did not start" in found[0].sentence
    assert found[1].sentence == f"{words}; see to it with `scancel 17`"
