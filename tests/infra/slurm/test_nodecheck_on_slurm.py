"""A node check on a real cluster: nodes that are lost on the way are found, told apart, and drained."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from configs.nodecheck import NodeCheckReport
from configs.schema import RunConfig
from tasks.recover.nodecheck_files import CheckFiles
from tasks.recover.task import check_nodes
from tests.flows.helpers import overland
from tests.infra.slurm.test_pretrain_on_slurm import slurm_run
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SETTINGS = {"round_timeout_s": 30.0, "start_timeout_s": 60.0, "slow_ratio": 1000.0, "trials": 2}


def site_config(site: Any, folder: Path, **settings: Any) -> RunConfig:
    """Of somebody who may drain nodes."""
    path = slurm_run(site, folder, recovery={"node_check": SETTINGS | settings})
    from configs.load import load_config

    return load_config(path)


def is_drained(site: Any, node: str) -> bool:
    return "DRAIN" in site.cluster.command("sinfo", "-h", "-N", "-n", node, "-o", "%T").upper()


def test_good_nodes_are_called_good(slurm_site: Any, tmp_path: Path) -> None:
    config = slurm_run(slurm_site, tmp_path, recovery={"node_check": SETTINGS})
    first = ",".join(slurm_site.nodes[:2])
    done = overland("nodecheck", config, "--nodes", first, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = NodeCheckReport.model_validate_json(done.stdout)
    assert report.named("good") == slurm_site.nodes[:2]
    assert (report.rounds, report.jobs) == (1, 1)


def test_a_node_killed_in_the_check_is_found_and_drained(slurm_site: Any, tmp_path: Path) -> None:
    config = site_config(slurm_site, tmp_path)
    folder, lost = tmp_path / "check", slurm_site.nodes[2]
    files = CheckFiles(folder / "try_1")
    reports: list[NodeCheckReport] = []
    check = threading.Thread(
        target=lambda: reports.append(check_nodes(config, folder, slurm_site.nodes))
    )
    check.start()
    wait_until(files.order_path(1).exists, "the roll call to end")
    slurm_site.cluster.kill_node(lost)
    try:
        check.join(180)
        (report,) = reports
        assert report.complete, report
        assert report.named("faulty") == [lost]
        assert report.named("good") == slurm_site.nodes[:2]
        assert (report.jobs, report.drained, report.drain_errors) == (1, [lost], [])
        assert is_drained(slurm_site, lost)
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)


def test_the_node_of_the_batch_script_is_no_exception(slurm_site: Any, tmp_path: Path) -> None:
    """Whether Slurm ends the job with its first node or not. A free node takes part beside the others."""
    config = site_config(slurm_site, tmp_path)
    folder, lost = tmp_path / "check", slurm_site.nodes[0]
    reports: list[NodeCheckReport] = []
    check = threading.Thread(
        target=lambda: reports.append(
            check_nodes(config, folder, slurm_site.nodes[:2], spare_nodes=1)
        )
    )
    check.start()
    wait_until(CheckFiles(folder / "try_1").order_path(1).exists, "the roll call to end")
    slurm_site.cluster.kill_node(lost)
    try:
        check.join(180)
        (report,) = reports
        assert report.complete, report
        assert report.named("down", "faulty") == [lost]
        assert report.named("good") == slurm_site.nodes[1:]
        assert report.jobs <= 2
        assert report.drained == [lost]
        assert is_drained(slurm_site, lost)
        assert "overland nodecheck" in slurm_site.cluster.command("scontrol", "show", "node", lost)
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)


def test_unknown_nodes_are_refused(slurm_site: Any, tmp_path: Path) -> None:
    config = slurm_run(slurm_site, tmp_path)
    done = overland("nodecheck", config, "--nodes", f"{slurm_site.nodes[0]},nowhere")
    assert done.returncode == 2
    assert "--nodes: there is no 'nowhere'" in done.stderr
