"""A slurmrestd that is made up, for what a real one says too seldom: its jobs, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from configs.schema import LauncherConfig
from infra.launch.base import JobSpec
from infra.launch.slurm import SlurmLauncher
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_jobs import JobTable
from infra.launch.slurm_submit import Submitter
from infra.launch.slurm_token import TokenSource

VERSION = "v0.0.42"
PATIENCE_S = 2.0
Hook = Callable[[httpx.Request], httpx.Response | None]


class FakeSlurm:
    """Keeps jobs; `hook` may answer a request in its place, or raise."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = [node("n1")]
        self.hook: Hook = lambda request: None
        self.posts = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if (answer := self.hook(request)) is not None:
            return answer
        *_, kind, name = request.url.path.rstrip("/").split("/")
        if f"/{VERSION}/" not in request.url.path:
            return httpx.Response(404, text="Unable find requested URL.")
        if name == "ping":
            return httpx.Response(200, json={"pings": [], "errors": []})
        if request.method == "POST":
            return httpx.Response(200, json={"job_id": self.accept(request), "errors": []})
        if request.method == "DELETE":
            self.job(int(name))["job_state"] = ["CANCELLED"]
            return httpx.Response(200, json={"errors": []})
        if kind == "job":
            found = [job for job in self.jobs if job["job_id"] == int(name)]
            errors = [] if found else [{"error_number": 2017, "error": "Invalid job id specified"}]
            return httpx.Response(200 if found else 404, json={"jobs": found, "errors": errors})
        if name == "nodes":
            return httpx.Response(200, json={"nodes": self.nodes, "errors": []})
        return httpx.Response(200, json={"jobs": self.jobs, "errors": []})

    def accept(self, request: httpx.Request) -> int:
        """Make the request's job; its number."""
        self.posts += 1
        comment = json.loads(request.content)["job"]["comment"]
        self.jobs.append(job(len(self.jobs) + 1, comment))
        return len(self.jobs)

    def job(self, job_id: int) -> dict[str, Any]:
        return next(job for job in self.jobs if job["job_id"] == job_id)

    def states(self) -> list[str]:
        return [job["job_state"][0] for job in self.jobs]


def job(job_id: int, comment: str, state: str = "PENDING", **more: Any) -> dict[str, Any]:
    known = {"state_reason": "Resources", "nodes": "", "exit_code": {}, "restart_cnt": 0}
    return {"job_id": job_id, "comment": comment, "job_state": [state]} | known | more


def node(name: str, *flags: str) -> dict[str, Any]:
    return {"name": name, "state": ["IDLE", *flags], "partitions": ["main"]}


def make(server: FakeSlurm, **settings: Any) -> SlurmLauncher:
    """A launcher in a process of its own, so to speak: nothing is remembered from another one."""
    slurm = {"url": "http://slurm:1", "token_file": "/x", "patience_s": PATIENCE_S}
    config = LauncherConfig.model_validate({"kind": "slurm", "slurm": slurm | settings})
    tokens = TokenSource(lambda: "head.e30.secret", "a test")
    client = SlurmClient("http://slurm:1", "me", tokens, transport=httpx.MockTransport(server))
    table = JobTable(client, interval_s=0.0, patience_s=PATIENCE_S)
    return SlurmLauncher(client, table, Submitter(client, config), patience_s=PATIENCE_S)


def spec(tmp_path: Path, key: str = "run/attempts/001") -> JobSpec:
    return JobSpec(key=key, name="n", argv=("true",), job_dir=tmp_path / "job")
