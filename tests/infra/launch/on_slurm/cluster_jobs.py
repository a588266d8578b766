"""What the tests of the launcher on a real cluster share: jobs that wait, and sites with other settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from job_helpers import python_job, slurm_config

from infra.launch import make_launcher
from infra.launch.base import JobSpec, Launcher

SLEEP = """
import os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
time.sleep(float(sys.argv[2]))
"""

WAITS = """
import os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
time.sleep(600)
"""


def with_settings(site: Any, **settings: Any) -> Launcher:
    return make_launcher(slurm_config(site, **settings))


def sleeper(tmp_path: Path, seconds: float = 600.0, name: str = "job") -> JobSpec:
    return python_job(
        tmp_path / name, SLEEP, str(tmp_path / f"{name}-pids"), str(seconds), key=name
    )


def ranks_job(tmp_path: Path, code: str, *, nodes: int, processes: int = 1) -> JobSpec:
    script = tmp_path / "ranks.py"
    script.write_text(code)
    return JobSpec(
        key="run/attempts/001",
        name="train",
        argv=(str(script), str(tmp_path / "pids")),
        job_dir=tmp_path / "a job",
        environment={"OMP_NUM_THREADS": "1"},
        distributed=True,
        nodes=nodes,
        processes_per_node=processes,
    )
