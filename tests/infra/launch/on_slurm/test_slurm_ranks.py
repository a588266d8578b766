"""Ranks on several nodes: they meet, are looked at, and leave together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import WAITS, ranks_job, with_settings
from job_helpers import is_running, log_text, wait_for_end, wait_for_pids

from configs.errors import EXIT_CONTINUE
from configs.stacks import RankStack
from infra.launch.base import JobState, Launcher
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]


REDUCES = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
rank, size, local = dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"]
line = f"rank {rank} of {size} local {local} on {os.environ['OVERLAND_NODE']} sum {int(total)}\\n"
os.write(1, line.encode())  # whole: others write too
dist.destroy_process_group()
"""


# Ranks that leave with the code for "continue me" when they are warned or asked to stop.
STOPS = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda n, _: got.append(signal.Signals(n).name))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
while not got:
    signal.sigtimedwait([], 0.05)
time.sleep(0.5 + 0.5 * int(os.environ["RANK"]))
os.write(1, f"rank {os.environ['RANK']} got {got[0]}\\n".encode())
sys.exit(75)
"""

FAILS = """
import os, sys, time
time.sleep(600 if os.environ["RANK"] == "0" else 1)
sys.exit(3)
"""


def test_two_nodes_reduce_over_gloo(launcher: Launcher, slurm_site: Any, tmp_path: Path) -> None:
    handle = launcher.submit(ranks_job(tmp_path, REDUCES, nodes=2, processes=2))
    status = wait_for_end(launcher, handle)
    text = log_text(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.COMPLETED, 0), text
    assert len(status.nodes) == 2
    first, second = status.nodes
    lines = sorted(line for line in text.splitlines() if line.startswith("rank"))
    assert lines == [
        f"rank 0 of 4 local 0 on {first} sum 10",
        f"rank 1 of 4 local 1 on {first} sum 10",
        f"rank 2 of 4 local 0 on {second} sum 10",
        f"rank 3 of 4 local 1 on {second} sum 10",
    ]


def test_ranks_on_two_nodes_are_looked_at(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(ranks_job(tmp_path, WAITS, nodes=2))
    pids = wait_for_pids(tmp_path / "pids", 2)
    wait_until(lambda: len(launcher.poll(handle).nodes) == 2, "two nodes")
    paths = launcher.stacks(handle, timeout_s=60.0)
    stacks = [RankStack.model_validate_json(path.read_bytes()) for path in paths]
    assert [stack.rank for stack in stacks] == [0, 1]
    assert [stack.node for stack in stacks] == list(launcher.poll(handle).nodes)
    assert {stack.pid for stack in stacks} == set(pids)
    launcher.cancel(handle, grace_s=0.0)
    assert launcher.poll(handle).reason == "cancelled"
    assert not any(is_running(pid) for pid in pids)


def test_one_nodes_failure_ends_the_others(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(ranks_job(tmp_path, FAILS, nodes=2))
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, 1)


@pytest.mark.parametrize("how", ["cancelled", "warned"])
def test_ranks_have_time_to_save(
    launcher: Launcher, slurm_site: Any, tmp_path: Path, how: str
) -> None:
    handle = launcher.submit(ranks_job(tmp_path, STOPS, nodes=2))
    wait_for_pids(tmp_path / "pids", 2)
    if how == "cancelled":
        launcher.cancel(handle, grace_s=30.0)
        expected, word = (JobState.CANCELLED, EXIT_CONTINUE), "SIGTERM"
    else:
        # What Slurm does by itself before the time limit, when it was told to.
        slurm_site.cluster.command("scancel", "--signal=USR1", handle.job_id)
        expected, word = (JobState.FAILED, EXIT_CONTINUE), "SIGUSR1"
    status = wait_for_end(launcher, handle)
    text = log_text(launcher, handle)
    assert (status.state, status.exit_code) == expected, text
    assert sorted(line for line in text.splitlines() if line.startswith("rank")) == [
        f"rank 0 got {word}",
        f"rank 1 got {word}",
    ]


def test_the_warning_is_ordered_from_slurm(slurm_site: Any, tmp_path: Path) -> None:
    """SIGUSR1 comes within a minute of what was asked for: here at once, as the job starts."""
    warned = with_settings(slurm_site, time_limit_minutes=2, warning_s=110)
    handle = warned.submit(ranks_job(tmp_path, STOPS, nodes=1))
    status = wait_for_end(warned, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, EXIT_CONTINUE)
    assert "rank 0 got SIGUSR1" in log_text(warned, handle)


def test_gpus_are_those_of_the_node(slurm_site: Any, tmp_path: Path) -> None:
    if "gpu" not in slurm_site.cluster.command("sinfo", "-h", "-p", "main", "-o", "%G"):
        pytest.skip("device files for GPUs can only be made by root")
    launcher = with_settings(slurm_site, gpus_per_node=2, gpu_type="h100")
    code = "import os; os.write(1, b'gpus ' + os.environb[b'CUDA_VISIBLE_DEVICES'] + bytes([10]))"
    handle = launcher.submit(ranks_job(tmp_path, code, nodes=2))
    status = wait_for_end(launcher, handle)
    text = log_text(launcher, handle)
    assert status.state is JobState.COMPLETED, text
    assert [line for line in text.splitlines() if line.startswith("gpus")] == ["gpus 0,1"] * 2
