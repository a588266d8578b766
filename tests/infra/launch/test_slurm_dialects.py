"""What is sent and understood in each version, checked against the daemons' own documents if they are here."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from infra.launch.slurm_dialects import OLD_VERSION, VERSIONS, make_dialect
from infra.launch.slurm_types import JobRequest, SlurmJob, expand, split_states

DOCUMENTS = Path(
    os.environ.get("OVERLAND_SLURM_OPENAPI")
    or Path(__file__).parents[4] / "shared" / "slurm" / "openapi"
)
"""A folder with what slurmrestd serves at /openapi/v3, as openapi-*.json.gz."""
GOLDEN = Path(__file__).parent / "slurm_golden"

FULL = JobRequest(
    script="#!/bin/bash\ntrue\n",
    name="train",
    comment="overland abc /runs/a",
    folder="/work",
    output="/work/%%/launcher.log",
    environment={"PATH": "/bin", "A": "b=c"},
    nodes=4,
    cpus_per_node=8,
    gpus_per_node=2,
    gpu_type="h100",
    memory_per_node_mib=1000,
    time_limit_minutes=90,
    warning_s=120,
    partition="main",
    account="research",
    qos="high",
    nice=100,
    constraints="ib",
    exclude_nodes=("node3", "node5"),
    need_nodes=("node1", "node2"),
    survives_nodes=True,
    dependency="afterok:17",
)
UNDOCUMENTED = {OLD_VERSION: {"nodes", "exclude_nodes", "nodelist", "no_kill"}}
"""Where 22.05 is right and its document is not: a list of node counts is ignored."""


def documented_schemas(version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a submission's body, and all schemas."""
    for path in sorted(DOCUMENTS.glob("openapi-*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        operation = document["paths"].get(f"/slurm/{version}/job/submit")
        if operation is not None:
            schemas = document["components"]["schemas"]
            content = operation["post"]["requestBody"]["content"]["application/json"]
            return content["schema"], schemas
    pytest.skip(
        f"no document of {version} in {DOCUMENTS}; OVERLAND_SLURM_OPENAPI can name another folder"
    )


def misfits(value: Any, schema: dict[str, Any], schemas: dict[str, Any], where: str) -> list[str]:
    """Where `value` is not what the schema says."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    kind = schema.get("type")
    if kind in kinds and (type(value) is not kinds[kind]):
        return [f"{where}: {value!r} is no {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    found: list[str] = []
    if isinstance(value, dict) and "properties" in schema:
        for key, item in value.items():
            if key not in schema["properties"]:
                found.append(f"{where}.{key}: unknown")
            else:
                found += misfits(item, schema["properties"][key], schemas, f"{where}.{key}")
    if isinstance(value, list) and "items" in schema:
        for item in value:
            found += misfits(item, schema["items"], schemas, f"{where}[]")
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_payload_fits_the_daemons_document(version: str) -> None:
    schema, schemas = documented_schemas(version)
    payload = make_dialect(version).payload(FULL)
    known = UNDOCUMENTED.get(version, set())
    for key in known:
        assert key in payload["job"]
        del payload["job"][key]
    assert misfits(payload, schema, schemas, "body") == []


def test_the_check_of_payloads_finds_what_is_wrong() -> None:
    schemas = {"n": {"type": "object", "properties": {"set": {"type": "boolean"}}}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/n"}, "b": {"type": "string"}}}
    assert misfits({"a": {"set": True}, "b": "x"}, schema, schemas, "") == []
    assert len(misfits({"a": {"set": 1, "no": 2}, "b": 3, "c": 4}, schema, schemas, "")) == 4


@pytest.mark.parametrize("version", [OLD_VERSION, "v0.0.42"])
def test_what_slurmdbd_remembers(version: str) -> None:
    is_old = version == OLD_VERSION
    value = {
        "job_id": 7,
        "name": "train",
        "comment": {"job": "overland abc k"},
        "nodes": "n[1-2]",
        "time": {"submission": 90, "start": 100, "end": 160},
        "state": {"current": "TIMEOUT" if is_old else ["TIMEOUT"], "reason": "None"},
        "exit_code": {"status": "SUCCESS", "return_code": 0}
        if is_old
        else {"status": ["ERROR"], "return_code": {"set": True, "infinite": False, "number": 3}},
    }
    old = make_dialect(version).accounted(value)
    assert (old.job.state, old.job.final, old.job.nodes) == ("TIMEOUT", True, ("n1", "n2"))
    assert (old.job.started_at, old.job.ended_at) == (100.0, 160.0)
    # 22.05 says 0 whatever happened.
    assert old.job.exit_code == (None if is_old else 3)
    assert old.is_the_one(comment="overland abc k", name="x", submitted_at=1e9)
    assert not old.is_the_one(comment="overland abd k", name="train", submitted_at=90.0)


def test_without_comments_slurmdbds_jobs_are_told_by_name_and_time() -> None:
    value = {"job_id": 7, "name": "train", "state": {"current": "FAILED"}, "nodes": "None assigned"}
    old = make_dialect(OLD_VERSION).accounted(value | {"time": {"submission": 5000}})
    assert old.job.nodes == ()
    assert old.is_the_one(comment="c", name="train", submitted_at=5002.5)
    assert not old.is_the_one(comment="c", name="other", submitted_at=5002.5)
    assert not old.is_the_one(comment="c", name="train", submitted_at=50000.0)


def test_payload_of_22_05() -> None:
    job = make_dialect(OLD_VERSION).payload(FULL)["job"]
    assert job["nodes"] == "4-4"
    assert (job["tasks"], job["tasks_per_node"], job["cpus_per_task"]) == (4, 1, 8)
    assert job["gres"] == "gpu:h100:2"
    assert job["environment"] == {"PATH": "/bin", "A": "b=c"}
    assert (job["time_limit"], job["memory_per_node"]) == (90, 1000)
    assert job["signal"] == "USR1@120"
    assert (job["exclude_nodes"], job["nodelist"]) == ("node3,node5", "node1,node2")
    assert job["no_kill"] == "set", "true is refused"
    assert "requeue" not in job, "any value means true"


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_payload_of_newer_versions(version: str) -> None:
    job = make_dialect(version).payload(FULL)["job"]
    assert job["tres_per_node"] == "gres/gpu:h100:2"
    assert job["environment"] == ["PATH=/bin", "A=b=c"]
    assert job["time_limit"] == {"set": True, "infinite": False, "number": 90}
    assert (job["kill_warning_signal"], job["kill_warning_delay"]["number"]) == ("USR1", 120)
    assert (job["excluded_nodes"], job["required_nodes"]) == (
        ["node3", "node5"],
        ["node1", "node2"],
    )
    assert job["kill_on_node_fail"] is False
    assert job["requeue"] is False


@pytest.mark.parametrize("version", VERSIONS)
def test_payload_is_the_golden_one(version: str) -> None:
    name = "payload_old.json" if version == OLD_VERSION else "payload_new.json"
    assert make_dialect(version).payload(FULL) == json.loads((GOLDEN / name).read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_asked_for_is_not_sent(version: str) -> None:
    least = JobRequest(script="", name="n", comment="c", folder="/", output="/o")
    job = make_dialect(version).payload(least)["job"]
    for key in (
        "partition",
        "account",
        "qos",
        "nice",
        "gres",
        "tres_per_node",
        "time_limit",
        "signal",
    ):
        assert key not in job
    for key in ("nodelist", "required_nodes", "no_kill", "kill_on_node_fail"):
        assert key not in job


@pytest.mark.parametrize("version", VERSIONS)
def test_more_nodes_are_not_held_back_by_a_number_of_tasks(version: str) -> None:
    more = dataclasses.replace(FULL, more_nodes=2)
    job = make_dialect(version).payload(more)["job"]
    assert job["nodes"] == "4-6"
    assert not {"tasks", "tasks_per_node"} & set(job)


OLD_JOB = {
    "job_id": 7, "comment": "c", "job_state": "FAILED", "state_reason": "NonZeroExitCode",
    "nodes": "node[1-2]", "exit_code": 768, "derived_exit_code": 0, "restart_cnt": 0,
    "start_time": 100, "end_time": 160,
}  # fmt: skip
NEW_JOB = {
    **OLD_JOB,
    "job_state": ["FAILED", "COMPLETING"],
    "exit_code": {
        "status": ["ERROR"],
        "return_code": {"set": True, "infinite": False, "number": 3},
        "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
    },
    "derived_exit_code": {"return_code": {"set": True, "number": 0}},
    "start_time": {"set": True, "infinite": False, "number": 100},
    "end_time": {"set": True, "infinite": False, "number": 160},
}


def test_jobs_are_understood_alike() -> None:
    old = make_dialect(OLD_VERSION).job(OLD_JOB)
    assert old == SlurmJob(
        job_id=7,
        comment="c",
        state="FAILED",
        flags=frozenset(),
        reason="NonZeroExitCode",
        nodes=("node1", "node2"),
        exit_code=3,
        signal=None,
        derived_exit_code=0,
        restarts=0,
        started_at=100.0,
        ended_at=160.0,
    )
    assert old.final
    new = make_dialect("v0.0.42").job(NEW_JOB)
    assert (new.state, new.exit_code, new.signal, new.nodes) == ("FAILED", 3, None, old.nodes)
    assert not new.final, "its nodes are still being cleaned"


def test_signals_and_states() -> None:
    killed = make_dialect(OLD_VERSION).job(OLD_JOB | {"exit_code": 9})
    assert (killed.exit_code, killed.signal) == (0, 9)
    ending = make_dialect(OLD_VERSION).job(OLD_JOB | {"job_state": "COMPLETING"})
    assert (ending.state, ending.final) == ("RUNNING", False)
    assert split_states(["PENDING", "REQUEUED"]) == ("PENDING", frozenset({"REQUEUED"}))


@pytest.mark.parametrize(
    ("version", "state", "flags", "usable", "lost"),
    [
        (OLD_VERSION, "idle", ["DRAIN"], False, False),
        (OLD_VERSION, "mixed", [], True, False),
        (OLD_VERSION, "down", [], False, True),
        ("v0.0.45", ["IDLE", "DRAIN"], None, False, False),
        ("v0.0.45", ["ALLOCATED"], None, True, False),
        ("v0.0.45", ["IDLE", "NOT_RESPONDING"], None, False, True),
        ("v0.0.45", ["DOWN", "DRAIN"], None, False, True),
        ("v0.0.45", ["IDLE", "FAIL"], None, False, True),
        ("v0.0.45", ["IDLE", "MAINTENANCE"], None, False, False),
        ("v0.0.45", ["IDLE", "REBOOT_REQUESTED"], None, False, False),
        # A job wakes it.
        ("v0.0.45", ["IDLE", "CLOUD", "POWERED_DOWN"], None, True, False),
        ("v0.0.45", ["MIXED", "NOT_RESPONDING", "POWERING_UP"], None, False, False),
    ],
)
def test_nodes(version: str, state: Any, flags: Any, usable: bool, lost: bool) -> None:
    value = {
        "name": "node1",
        "state": state,
        "state_flags": flags,
        "reason": None,
        "partitions": ["a"],
    }
    node = make_dialect(version).node(value)
    assert (node.usable, node.is_lost, node.partitions) == (usable, lost, ("a",))


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("node1", ("node1",)),
        ("node[1-3]", ("node1", "node2", "node3")),
        ("node[08-10,12],login", ("node08", "node09", "node10", "node12", "login")),
        ("r[1-2]n[1-2]x", ("r1n1x", "r1n2x", "r2n1x", "r2n2x")),
    ],
)
def test_node_lists(text: str, nodes: tuple[str, ...]) -> None:
    assert expand(text) == nodes
