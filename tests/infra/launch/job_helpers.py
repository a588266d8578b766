"""What the launcher tests share: small real programs, their ends, and the config of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil

from configs.schema import LauncherConfig
from infra.launch.base import JobHandle, JobSpec, JobStatus, Launcher
from tests.waiting import wait_until


def slurm_config(site: Any, **more: Any) -> LauncherConfig:
    """The config of somebody who uses this cluster, with the patience of a test."""
    conf = site.cluster.settings.conf
    slurm = {
        "url": site.url,
        "token_file": site.token_file,
        "scontrol": ["env", f"SLURM_CONF={conf}", "scontrol"],
        "network_interface": "lo",
        "poll_interval_s": 0.2,
        "patience_s": 60.0,
    }
    return LauncherConfig.model_validate({"kind": "slurm", "slurm": slurm | more})


def python_job(job_dir: Path, code: str, *arguments: str, key: str = "run/attempts/001") -> JobSpec:
    """A job that runs `code` in a bare interpreter."""
    argv = (sys.executable, "-I", "-S", "-c", code, *arguments)
    return JobSpec(key=key, name="test", argv=argv, job_dir=job_dir)


def wait_for_end(launcher: Launcher, handle: JobHandle) -> JobStatus:
    """Poll until the job has ended."""
    wait_until(lambda: launcher.poll(handle).state.final, f"the end of job {handle.key}")
    return launcher.poll(handle)


def wait_for_pids(folder: Path, count: int) -> list[int]:
    """Wait until `count` processes have each made a file named by their pid in `folder`."""

    def pids() -> list[int]:
        return [int(path.name) for path in folder.iterdir()] if folder.is_dir() else []

    wait_until(lambda: len(pids()) >= count, f"{count} processes in {folder}")
    return pids()


def is_running(pid: int) -> bool:
    """Whether the process can still do anything."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def log_text(launcher: Launcher, handle: JobHandle) -> str:
    """All output of the job."""
    return "".join(path.read_text() for path in launcher.logs(handle))
