"""This machine: Python, packages, torch and GPUs, node memory, open files."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from configs.memory import GIB
from infra.doctor import probe_torch
from infra.doctor.findings import Finding, failed, ok, skipped, warning

_OLDEST_PYTHON = (3, 11)
_FEW_OPEN_FILES = 4096
PROBE_LIMIT_S = 120.0
"""torch comes from shared storage, which may take its time."""
_GPU_DEVICES = ("/dev/nvidia0", "/dev/kfd")


def check_python(_: threading.Event) -> Finding:
    version = platform.python_version()
    if sys.version_info < _OLDEST_PYTHON:
        needed = ".".join(map(str, _OLDEST_PYTHON))
        return failed(
            "Python", f"{version} is too old: make the environment with {needed} or newer"
        )
    return ok("Python", f"{version} in {sys.prefix}")


def check_packages(_: threading.Event) -> Finding:
    """Overland's own requirements, of its installed distribution."""
    try:
        lines = metadata.requires("overland") or []
    except metadata.PackageNotFoundError:
        return skipped(
            "packages", "Overland is not installed as a package, so its needs are not known"
        )
    wanted = [Requirement(line) for line in lines]
    return judge_packages(
        [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    )


def judge_packages(wanted: list[Requirement]) -> Finding:
    """Whether each is there in a version that fits."""
    wrong = []
    for requirement in wanted:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, but must be {requirement.specifier}")
    if wrong:
        return failed(
            "packages", f"{'; '.join(wrong)}: install Overland again, with -c constraints.txt"
        )
    return ok("packages", f"all {len(wanted)} are there in versions that fit")


def check_open_files(_: threading.Event) -> Finding:
    """Shards, sockets and workers each want a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_open_files("open files", soft, hard)


def judge_open_files(subject: str, soft: int, hard: int) -> Finding:
    if soft != resource.RLIM_INFINITY and soft < _FEW_OPEN_FILES:
        if hard == resource.RLIM_INFINITY or hard >= _FEW_OPEN_FILES:
            how = f"`ulimit -n {_FEW_OPEN_FILES}` before starting"
        else:
            how = "have the administrator raise nofile in /etc/security/limits.conf"
        return warning(
            subject, f"a process may open {soft}, which is few for many shards and ranks: {how}"
        )
    return ok(subject, f"a process may open {'any number' if soft < 0 else f'{soft:,}'}")


def check_memory_folder(_: threading.Event, folder: Path, needed_bytes: int | None) -> Finding:
    """Room for snapshots, which outlive a crashed process there."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return warning(
            "node memory",
            f"{folder} cannot be used ({error.strerror}): snapshots will not outlive a crash; "
            "checkpoint.memory=off says that this is meant so",
        )
    return judge_memory_folder("node memory", folder, free, needed_bytes)


def judge_memory_folder(subject: str, folder: Path, free: int, needed_bytes: int | None) -> Finding:
    room = f"{free / GIB:.1f} GiB free in {folder}"
    if needed_bytes is None:
        if free < GIB:
            return warning(
                subject,
                f"{room}: snapshots hardly fit; in a container give it room (docker run --shm-size)",
            )
        return ok(subject, room)
    need = f"the snapshots of this run take {needed_bytes / GIB:.2g} GiB"
    if free < needed_bytes:
        return warning(
            subject,
            f"{room}, but {need}: give it room (docker run --shm-size), or set checkpoint.buffers=1",
        )
    return ok(subject, f"{room}; {need}")


# --- torch ----------------------------------------------------------------------------------------


def run_probe(argument: str, limit_s: float = PROBE_LIMIT_S) -> dict[str, Any] | str:
    """What the probe prints, from a process of its own: a broken library may take it down or hang.

    A sentence when there is nothing to be had.
    """
    command = [sys.executable, "-P", str(Path(probe_torch.__file__)), argument]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            cwd=Path(probe_torch.__file__).parent.parent.parent,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:g} s"
    lines = done.stdout.splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    words = (done.stderr.strip().splitlines() or ["no word"])[-1]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return f"its process ended with {how}: {words[:300]}"


def check_torch(_: threading.Event, gpus_needed: int | None) -> list[Finding]:
    """torch, GPUs and NCCL, as a training process would find them."""
    return judge_torch(run_probe("torch"), gpus_needed, has_gpu_device())


def has_gpu_device() -> bool:
    return any(os.path.exists(device) for device in _GPU_DEVICES)  # noqa: PTH110


def judge_torch(
    answer: dict[str, Any] | str, gpus_needed: int | None, has_device: bool, where: str = ""
) -> list[Finding]:
    """`gpus_needed`: training processes on the node, if they shall have a GPU each."""
    names = [f"{name}{where}" for name in ("torch", "GPUs", "NCCL")]
    if isinstance(answer, str) or "error" in answer:
        reason = answer if isinstance(answer, str) else answer["error"]
        return [
            failed(names[0], f"cannot be imported ({reason}): install it as the README says"),
            skipped(names[1], "torch is not there to ask"),
            skipped(names[2], "torch is not there to ask"),
        ]
    build = f"CUDA {answer['cuda']}" if answer["cuda"] else "without CUDA"
    return [
        ok(names[0], f"{answer['torch']}, {build}"),
        _judge_gpus(names[1], answer, gpus_needed, has_device),
        _judge_nccl(names[2], answer),
    ]


def _judge_gpus(
    subject: str, answer: dict[str, Any], gpus_needed: int | None, has_device: bool
) -> Finding:
    gpus = answer["gpus"]
    if not gpus and has_device:
        why = "its driver is missing or too old"
        if not answer["cuda"]:
            why = "this torch is the build without CUDA: install the one for CUDA"
        return failed(
            subject, f"there is a GPU, but torch cannot use it: {answer['gpu_error'] or why}"
        )
    if gpus_needed is not None and len(gpus) < gpus_needed:
        return failed(
            subject,
            f"torch sees {len(gpus)}, but {gpus_needed} training processes want one each: set "
            f"launcher.processes_per_node to what there is, or ask for more GPUs",
        )
    if not gpus:
        return ok(subject, "none: training runs on CPUs, over gloo")
    kinds = {gpu["name"] for gpu in gpus}
    memory = min(gpu["bytes"] for gpu in gpus) / GIB
    return ok(subject, f"{len(gpus)} x {' and '.join(sorted(kinds))}, {memory:.0f} GiB each")


def _judge_nccl(subject: str, answer: dict[str, Any]) -> Finding:
    if not answer["gpus"]:
        return skipped(subject, "no GPU here that could use it")
    if not answer["nccl"]:
        return failed(subject, "this torch has none: install the build for CUDA")
    if answer["nccl_error"]:
        return failed(
            subject, f"{answer['nccl']} cannot add up over the GPUs here: {answer['nccl_error']}"
        )
    return ok(subject, f"{answer['nccl']} adds up over all {len(answer['gpus'])} GPUs here")


def check_megatron(_: threading.Event) -> Finding:
    """The import that training makes."""
    answer = run_probe("megatron")
    if isinstance(answer, str) or "error" in answer:
        reason = answer if isinstance(answer, str) else answer["error"]
        return failed(
            "megatron-core",
            f"cannot be imported ({reason}): install it with the versions of constraints.txt",
        )
    return ok("megatron-core", f"{answer['version']} can be imported")
