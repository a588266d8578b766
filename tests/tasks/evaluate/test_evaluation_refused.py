"""When the cluster refuses one of an evaluation's jobs, those beside it are ended; a person reads why."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import pytest

from configs.errors import JobRefusedError
from configs.rundir import RunDir
from configs.schema import RunConfig
from tasks.evaluate.task_jobs import run_stages, work_on
from tests.infra.launch.slurm_server import FakeSlurm, make


def refuse_scoring(request: httpx.Request) -> httpx.Response | None:
    if request.method != "POST" or "-score-" not in json.loads(request.content)["job"]["name"]:
        return None
    error = {"error_number": 2014, "error": "Requested node configuration is not available"}
    return httpx.Response(500, json={"errors": [error]})


def test_inference_is_ended_when_scoring_is_refused(tmp_path: Path) -> None:
    server = FakeSlurm()
    server.hook = refuse_scoring
    slurm = {"url": "http://slurm:1", "token_file": "/x"}
    config = RunConfig.model_validate(
        {"name": "r", "run_dir": tmp_path, "launcher": {"kind": "slurm", "slurm": slurm}}
    )
    model = RunDir(tmp_path).evaluation(5).model_dir
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    work = work_on(config, 5, make(server), lambda text: None)
    with pytest.raises(JobRefusedError, match="no node can ever satisfy it"):
        run_stages(work, ["infer", "score"], threading.Event())
    assert server.states() == ["CANCELLED"]
