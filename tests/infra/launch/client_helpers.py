"""A Slurm server that is made up, one answer at a time, and a client of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_token import TokenSource
from infra.launch.slurm_types import JobRequest

TOKEN = "head.e30.secret"
REQUEST = JobRequest(script="#!/bin/bash\n", name="n", comment="c", folder="/", output="/o")
Answer = Callable[[httpx.Request], httpx.Response]


def old_job(job_id: int, state: str = "RUNNING") -> dict[str, Any]:
    return {
        "job_id": job_id, "comment": f"job {job_id}", "job_state": state, "state_reason": "None",
        "nodes": "node1", "exit_code": 0, "restart_cnt": 0, "start_time": 1, "end_time": 0,
    }  # fmt: skip


class Server:
    """Speaks one version; `answer` decides what happens to anything but ping."""

    def __init__(self, version: str, answer: Answer) -> None:
        self.version, self.answer = version, answer
        self.requests: list[httpx.Request] = []
        self.refuses_tokens = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if f"/{self.version}/" not in request.url.path:
            return httpx.Response(404, text="Unable find requested URL.")
        if self.refuses_tokens:
            return httpx.Response(401, text="no")
        if "/ping" in request.url.path:
            return httpx.Response(200, json={"errors": []})
        return self.answer(request)

    @property
    def asked(self) -> list[str]:
        """What was asked but for pings."""
        return [f"{r.method} {r.url.path}" for r in self.requests if "/ping" not in r.url.path]


def make_client(server: Server, tokens: TokenSource | None = None) -> SlurmClient:
    source = tokens or TokenSource(lambda: TOKEN, "a test")
    return SlurmClient("http://slurm:6820/", "me", source, transport=httpx.MockTransport(server))


def errors(status: int, **error: Any) -> Answer:
    return lambda _: httpx.Response(status, json={"errors": [error], "jobs": []})
