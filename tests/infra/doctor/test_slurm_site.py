"""A site's Slurm on a real cluster: token, REST, partitions, and the small job on two nodes."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from configs.files import file_lock
from configs.schema import LauncherConfig
from configs.slurm_schema import SlurmConfig
from infra.doctor import node
from infra.doctor.findings import Finding, Status
from infra.doctor.judge_nodes import Answers, judge
from infra.doctor.nodes import NodeProbe, check_nodes
from infra.doctor.slurm import check_rest, check_token

pytestmark = pytest.mark.slow
STOP = threading.Event()


@pytest.fixture
def site(slurm_site: Any) -> SlurmConfig:
    return SlurmConfig(
        url=slurm_site.url,
        token_file=slurm_site.token_file,
        partition="main",
        low_priority_partition="low",
        network_interface="lo",
        poll_interval_s=0.2,
    )


def changed(site: SlurmConfig, **changes: Any) -> SlurmConfig:
    return site.model_copy(update=changes)


def test_the_token(tmp_path: Path, slurm_site: Any, site: SlurmConfig) -> None:
    found = check_token(STOP, site, tmp_path)
    assert found.status is Status.OK
    assert re.search(r"expires in 2[34]\.\d h", found.sentence), (
        "made for a day, when the tests began"
    )

    open_to_all = tmp_path / "token"
    open_to_all.write_text(slurm_site.token_file.read_text())
    open_to_all.chmod(0o644)
    found = check_token(STOP, changed(site, token_file=open_to_all), tmp_path)
    assert (found.status, f"chmod 600 {open_to_all}" in found.sentence) == (Status.FAILED, True)

    soon = tmp_path / "soon"
    soon.touch(mode=0o600)
    soon.write_text(slurm_site.cluster.token("root", lifespan_s=600))
    found = check_token(STOP, changed(site, token_file=soon), tmp_path)
    assert (found.status, "renew the file" in found.sentence) == (Status.WARNING, True)
    assert soon.read_text().strip() not in found.sentence

    found = check_token(STOP, changed(site, user="nosuchuser"), tmp_path)
    assert (found.status, "launcher.slurm.user" in found.sentence) == (Status.FAILED, True)

    found = check_token(STOP, changed(site, token_file=tmp_path / "none"), tmp_path)
    assert found.status is Status.FAILED
    found = check_token(STOP, changed(site, token_file=tmp_path), tmp_path)
    assert (found.status, f"{tmp_path} is a folder: " in found.sentence) == (Status.FAILED, True)


def test_rest_and_partitions(tmp_path: Path, site: SlurmConfig) -> None:
    rest, partition = check_rest(STOP, site)
    assert (rest.status, partition.status) == (Status.OK, Status.OK)
    assert "speaks v0.0." in rest.sentence

    _, partition = check_rest(STOP, changed(site, partition="gpus"))
    assert (partition.status, "'gpus' does not exist" in partition.sentence) == (
        Status.FAILED,
        True,
    )

    other = tmp_path / "token"
    other.touch(mode=0o600)
    head, body, _ = site.token_file.read_text().strip().split(".")  # type: ignore[union-attr]
    other.write_text(f"{head}.{body}.c2lnbmVkIGJ5IG5vYm9keQ")
    rest, partition = check_rest(STOP, changed(site, token_file=other))
    assert (rest.status, "does not accept the token" in rest.sentence) == (Status.FAILED, True)
    assert partition.status is Status.SKIPPED

    rest, _ = check_rest(STOP, changed(site, url="http://127.0.0.1:9"))
    assert (rest.status, "cannot be reached" in rest.sentence) == (Status.FAILED, True)


# --- the job on two nodes -------------------------------------------------------------------------


def look(site: SlurmConfig, folder: Path, **more: Any) -> dict[str, Finding]:
    """By subject; the job and its folder must be gone."""
    launcher = LauncherConfig(kind="slurm", processes_per_node=1, cpu_threads=1, slurm=site)
    found = check_nodes(STOP, NodeProbe(launcher, folder, **more))
    assert list(folder.iterdir()) == []
    return {finding.subject: finding for finding in found}


def live_jobs(slurm_site: Any) -> str:
    return str(slurm_site.cluster.command("squeue", "--noheader"))


def test_two_nodes_that_are_well(tmp_path: Path, slurm_site: Any, site: SlurmConfig) -> None:
    found = look(site, tmp_path, snapshot_bytes=1)
    assert {finding.status for finding in found.values()} <= {
        Status.OK,
        Status.SKIPPED,
    }, found
    names = ", ".join(slurm_site.nodes[:2])
    assert found["Slurm job"].sentence.endswith(f"ran on {names}")
    assert found["shared storage"].sentence.startswith(f"this machine and {names} see the same")
    assert found["torch on nodes"].sentence.startswith(f"{names}: ")
    assert found["network on nodes"].sentence == f"{names}: lo has an IPv4 address"
    assert set(found) >= {"shared locks", "clocks on nodes", "node memory on nodes"}
    assert live_jobs(slurm_site) == ""


def test_a_request_that_is_refused(tmp_path: Path, slurm_site: Any, site: SlurmConfig) -> None:
    found = look(changed(site, cpus_per_node=100_000), tmp_path)
    assert set(found) == {"Slurm job"}
    assert found["Slurm job"].status is Status.FAILED
    assert "can never give 2 node(s) with 100000 CPU(s)" in found["Slurm job"].sentence
    assert live_jobs(slurm_site) == ""


def test_a_queue_that_is_full(tmp_path: Path, slurm_site: Any, site: SlurmConfig) -> None:
    command = ("sbatch", "--parsable", "--exclusive", "--partition=main", "--output=/dev/null")
    nodes = len(slurm_site.nodes)
    job = slurm_site.cluster.command(*command, f"--nodes={nodes}", "--wrap=sleep 600").strip()
    try:
        found = look(site, tmp_path, queue_limit_s=2.0)
    finally:
        slurm_site.cluster.command("scancel", job)
    assert found["Slurm job"].status is Status.SKIPPED
    assert "did not start within 2 s" in found["Slurm job"].sentence
    assert "overland-doctor" not in live_jobs(slurm_site)


def test_no_slurm_to_ask(tmp_path: Path, site: SlurmConfig) -> None:
    found = look(changed(site, token_file=tmp_path.parent / "none"), tmp_path)
    assert found["Slurm job"].status is Status.SKIPPED


# --- what a node says, and what it means ----------------------------------------------------------


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of a node that sees no other, and no lock."""
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(node, "_torch", lambda: "not asked")
    (tmp_path / "hello").write_text("hello")
    (tmp_path / "lock").touch()
    (tmp_path / "go").touch()
    node.main(tmp_path, nodes=2, peer_limit_s=0.2)
    answer: dict[str, Any] = json.loads((tmp_path / "answer-n1").read_text())
    return answer


def answers(*given: dict[str, Any], place: Path) -> Answers:
    now = time.time()
    return Answers(
        job_id="1",
        count=2,
        place=place,
        hello="hello",
        answers=given,
        clocks={a["node"]: (now, now + 1, now + a.get("clock", 0)) for a in given},
        gpus_needed=None,
        snapshot_bytes=None,
    )


def judged(*given: dict[str, Any], place: Path) -> dict[str, Finding]:
    return {finding.subject: finding for finding in judge(answers(*given, place=place))}


def test_a_node_that_is_silent_and_locks_that_do_not_hold(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    found = judged(answer, place=tmp_path)
    assert (found["Slurm job"].status, "only n1 answered" in found["Slurm job"].sentence) == (
        Status.FAILED,
        True,
    )
    assert found["shared storage"].status is Status.WARNING
    assert found["shared locks"].status is Status.WARNING
    with file_lock(tmp_path / "lock"):
        assert node.lock_is_seen(tmp_path / "lock") is True


def test_nodes_without_the_interface(tmp_path: Path, answer: dict[str, Any]) -> None:
    other = answer | {"node": "n2", "network_interfaces": {"lo": True, "ib0": True}}
    found = judge(
        dataclasses.replace(answers(answer, other, place=tmp_path), network_interface="ib0")
    )
    said = {f.sentence for f in found if f.subject == "network on nodes"}
    assert "n2: ib0 has an IPv4 address" in said
    assert any(sentence.startswith("n1: there is no 'ib0': set ") for sentence in said)


def test_nodes_that_see_other_files(tmp_path: Path, answer: dict[str, Any]) -> None:
    other = answer | {"node": "n2", "peers": ["n2"], "hello": None, "clock": -100}
    found = judged(answer, other, place=tmp_path)
    assert found["shared storage"].status is Status.FAILED
    assert found["clocks on nodes"].sentence.startswith("n2: 100 s behind")
    both = answer | {"peers": ["n1", "n2"]}
    found = judged(both, other | {"hello": "hello"}, place=tmp_path)
    assert "n2 does not see what n1 has written" in found["shared storage"].sentence
    found = judged(both, both | {"node": "n2"}, place=tmp_path)
    assert found["shared storage"].status is Status.OK
