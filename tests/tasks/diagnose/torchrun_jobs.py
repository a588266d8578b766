"""Small real torchrun jobs on gloo that fail in a chosen way, with an attempt's log files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from configs.records import AttemptRecord
from configs.rundir import AttemptDir

_JOB = """
import ctypes, datetime, faulthandler, json, logging, os, signal, sys, time
from pathlib import Path
attempt, how, timeout_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
rank = int(os.environ["RANK"])
log = os.open(attempt / f"rank_{rank:05d}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
os.dup2(log, 1)
os.dup2(log, 2)
import torch, torch.distributed as dist

def fail():
    kind, _, name = how.partition(":")
    if kind == "signal":
        os.kill(os.getpid(), getattr(signal, name))
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "chain":
        try:
            open("/nonexistent/weights")
        except OSError as error:
            raise RuntimeError("cannot go on") from error
    elif kind == "sleep":
        time.sleep(600)

def full_disk():
    try:
        with open("/dev/full", "w") as file:
            file.write("x")
    except OSError as error:
        logging.warning("this rank could not write its part", exc_info=True)
        event = {"event": "checkpoint", "time": time.time(), "step": 1, "outcome": "failed"}
        event |= {"duration_s": 0.1, "error": f"rank {rank}: OSError: {error}"}
        (attempt / "events.jsonl").write_text(json.dumps(event) + "\\n")

faulthandler.enable()
logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
tensor = torch.ones(4)
if rank == 1:
    full_disk()
for step in range(4):
    dist.all_reduce(tensor)
    print("step", step, flush=True)
    if step == 2 and rank == 1:
        fail()
dist.barrier()
dist.destroy_process_group()
"""


def run_job(path: Path, how: str, *, timeout_s: float = 60.0) -> AttemptDir:
    """Run two ranks of which rank 1 fails after step 2; returns when torchrun has ended."""
    attempt = AttemptDir(path / "attempts" / "001", 1)
    attempt.job_dir.mkdir(parents=True)
    script = path / "job.py"
    script.write_text(_JOB)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={path / 'store'}"]
    command += ["--rdzv-conf=store_type=file", "--local-addr=127.0.0.1"]
    command += [str(script), str(attempt.path), how, str(timeout_s)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with open(attempt.job_dir / "launcher.log", "wb") as log:
        ended = subprocess.run(
            command, stdout=log, stderr=log, env=environment, check=False, timeout=300
        )
    assert ended.returncode != 0
    return attempt


def failed_record(**changes: object) -> AttemptRecord:
    """The record of an attempt that the launcher saw fail on one node."""
    values = {
        "number": 1,
        "key": "k",
        "job_id": "j",
        "submitted_at": 1000.0,
        "ended_at": 1100.0,
        "outcome": "failed",
        "exit_code": 1,
        "reason": "FAILED",
        "nodes": ["box"],
    }
    return AttemptRecord.model_validate({**values, **changes})
