"""What the answers of the nodes mean, a line for each thing; nodes that say the same share one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.doctor.findings import Finding, Status, failed, ok, warning
from infra.doctor.machine import judge_memory_folder, judge_open_files, judge_torch
from infra.doctor.services import judge_clock

_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True)
class Answers:
    """What a job has brought back."""

    job_id: str
    count: int
    """Nodes that it ran on."""
    place: Path
    hello: str
    answers: Sequence[Mapping[str, Any]]
    """As infra/doctor/node.py writes them."""
    clocks: Mapping[str, tuple[float, float, float]]
    """Node -> when it was told, when its answer was seen here, and what its own clock said between."""
    gpus_needed: int | None
    snapshot_bytes: int | None
    network_interface: str | None = None
    """Over which ranks shall talk; None: none is named."""


def judge(found: Answers) -> list[Finding]:
    """All findings, the job's own first."""
    names = [answer["node"] for answer in found.answers]
    lines = [_judge_job(found, names), _judge_view(found, names), _judge_locks(found)]
    per_node = [
        (answer["node"], finding) for answer in found.answers for finding in _of(found, answer)
    ]
    return lines + _merged(per_node)


def _judge_job(found: Answers, names: Sequence[str]) -> Finding:
    if len(names) < found.count:
        return failed(
            "Slurm job",
            f"{found.job_id} ran on {found.count} nodes, but only {', '.join(names)} answered: look at "
            "the others with `scontrol show node`",
        )
    return ok("Slurm job", f"{found.job_id} was taken, and ran on {', '.join(names)}")


def _judge_view(found: Answers, names: Sequence[str]) -> Finding:
    subject = "shared storage"
    for answer in found.answers:
        if answer["hello"] != found.hello:
            return failed(
                subject,
                f"{answer['node']} does not see what was written to {found.place} here: put the run "
                "folder on storage that all nodes share",
            )
        if missing := set(names) - set(answer["peers"]):
            return failed(
                subject,
                f"{answer['node']} does not see what {min(missing)} has written to {found.place}: "
                "put the run folder on storage that all nodes share",
            )
    who = f"this machine and {', '.join(names)} see"
    if len(names) == 1:
        return warning(
            subject, f"{who} the same files in {found.place}, but no second node could be asked"
        )
    return ok(subject, f"{who} the same files in {found.place}")


def _judge_locks(found: Answers) -> Finding:
    subject = "shared locks"
    for answer in found.answers:
        if answer["lock_is_seen"] is not True:
            why = answer["lock_is_seen"] or "it could be taken a second time"
            return warning(
                subject,
                f"a lock that is held here does not hold on {answer['node']} ({why}): start flows on one "
                "machine only, or mount the storage with locks (Lustre: -o flock; NFS: version 4)",
            )
    return ok(subject, "a lock that is held here holds on the nodes")


def _of(found: Answers, answer: Mapping[str, Any]) -> list[Finding]:
    """What concerns the node alone."""
    node, lines = answer["node"], []
    torch = answer["torch"]
    lines += judge_torch(torch, found.gpus_needed, answer["has_gpu_device"], " on nodes")
    subject = "node memory on nodes"
    if answer["memory_free_bytes"] is None:
        lines.append(
            warning(subject, f"{_MEMORY} cannot be used: snapshots will not outlive a crash")
        )
    else:
        free, needed = answer["memory_free_bytes"], found.snapshot_bytes
        lines.append(judge_memory_folder(subject, _MEMORY, free, needed))
    if found.network_interface is not None:
        lines.append(judge_interface(found.network_interface, answer["network_interfaces"]))
    lines.append(judge_open_files("open files on nodes", *answer["open_files"]))
    if node in found.clocks:
        lines.append(judge_clock("clocks on nodes", *found.clocks[node]))
    return lines


def judge_interface(wanted: str, there: Mapping[str, bool]) -> Finding:
    """`there`: the node's interfaces, and whether each has an IPv4 address."""
    subject = "network on nodes"
    if there.get(wanted):
        return ok(subject, f"{wanted} has an IPv4 address")
    wrong = f"{wanted} has no IPv4 address" if wanted in there else f"there is no {wanted!r}"
    # Loopback last: it leads to other nodes only where they are made up.
    names = sorted((n for n, usable in there.items() if usable), key=lambda n: (n == "lo", n))
    return failed(
        subject, f"{wrong}: set launcher.slurm.network_interface to one of {', '.join(names)}"
    )


def _merged(lines: Sequence[tuple[str, Finding]]) -> list[Finding]:
    """In the order of the subjects; who says it stands before what is said."""
    who: dict[tuple[str, Status, str], list[str]] = {}
    for node, finding in lines:
        who.setdefault((finding.subject, finding.status, finding.sentence), []).append(node)
    order = list(dict.fromkeys(finding.subject for _, finding in lines))
    merged = sorted(who.items(), key=lambda item: order.index(item[0][0]))
    return [
        Finding(subject, status, f"{', '.join(nodes)}: {sentence}")
        for (subject, status, sentence), nodes in merged
    ]
