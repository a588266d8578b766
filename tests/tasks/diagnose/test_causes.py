"""What other lines add to a finding: a GPU that is gone, memory that is another's, a link that was down before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on

STEPS = [f"[2025-01-01 10:{at:02}:00] iteration {at} loss: 2.{at}" for at in range(1, 30)]
PLACES = [f"[launch] rank {r} -> host gpu-{r // 4} pid {100 + r}" for r in range(16)]


@pytest.mark.parametrize(
    ("word", "name"),
    [("[rank5]: RuntimeError: CUDA error: unknown error", "CUDAError"), ("", "NodeFailure")],
)
def test_a_gpu_that_is_gone_is_a_cuda_error_where_a_rank_met_one(
    tmp_path: Path, word: str, name: str
) -> None:
    xid = "gpu-1 kernel: NVRM: Xid (PCI:0000:d1:00): 79, pid=1, GPU has fallen off the bus."
    verdict = verdict_on(tmp_path, [*PLACES, *STEPS, xid, word])
    assert (verdict.failure_class, verdict.faulty_node) == (name, "gpu-1")
    assert verdict.action == "restart_exclude_node"


@pytest.mark.parametrize(
    ("pid", "action"), [(77_777, "restart_exclude_node"), (106, "fix_by_user")]
)
def test_memory_that_a_stranger_holds_is_the_nodes_fault(
    tmp_path: Path, pid: int, action: str
) -> None:
    error = (
        "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 3 has a "
        f"total capacity of 79.10 GiB. Process {pid} has 71.90 GiB memory in use. Including non-PyTorch "
        "memory, this process has 7.08 GiB memory in use."
    )
    verdict = verdict_on(tmp_path, [*PLACES, error])
    assert (verdict.failure_class, verdict.action) == ("OutOfMemoryError", action)
    assert verdict.faulty_node == ("gpu-1" if action == "restart_exclude_node" else None)


def test_a_driver_that_one_node_of_several_lacks_is_the_nodes_fault(tmp_path: Path) -> None:
    error = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
    one = verdict_on(tmp_path, [*PLACES, f"[gpu-1] {error}"])
    assert (one.faulty_node, one.action) == ("gpu-1", "restart_exclude_node")
    all_of_them = verdict_on(tmp_path, [*PLACES, *(f"[gpu-{at}] {error}" for at in range(4))])
    assert (all_of_them.failure_class, all_of_them.action) == ("ImportError", "fix_by_user")


def test_a_link_that_went_down_some_steps_before_is_the_cause(tmp_path: Path) -> None:
    down = "gpu-3 kernel: mlx5_core 0000:9a:00.0 ibs4: Link down"
    lost = "[rank1]: ncclRemoteError: A call failed possibly due to a network error"
    verdict = verdict_on(tmp_path, [*PLACES, *STEPS[:20], down, *STEPS[20:], lost])
    assert (verdict.failure_class, verdict.faulty_node) == ("NetworkError", "gpu-3")
    survived = verdict_on(tmp_path, [*PLACES, down, *STEPS * 4, lost])
    assert survived.failure_class == "NCCLRemoteError"


def test_what_a_monitor_says_after_a_timeout_is_no_cause(tmp_path: Path) -> None:
    timeout = (
        "[rank0]:[E1028 07:52:44.19 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800051 milliseconds"
    )
    monitor = ["nanny: no progress for 1843 s", "nanny: rank 6 is the only one behind"]
    verdict = verdict_on(tmp_path, [*PLACES, timeout, *monitor])
    assert (verdict.failure_class, verdict.faulty_rank) == ("NCCLTimeoutError", 6)
    assert verdict_on(tmp_path, [*PLACES, *monitor, timeout]).failure_class == "Hang"


def test_steps_of_slurm_are_none_of_training(tmp_path: Path) -> None:
    lost = "srun: error: Task launch for StepId=46.1 failed on node gpu-2: Communication connection failure"
    ended = [
        f"slurmstepd: error: *** STEP 46.1 ON gpu-{at} CANCELLED AT 2024-09-09T09:11:08 ***"
        for at in (0, 1, 3, 4)
    ]
    verdict = verdict_on(tmp_path, [*PLACES, lost, *ended])
    assert (verdict.failure_class, verdict.faulty_node) == ("NodeFailure", "gpu-2")


def test_a_job_that_saves_and_leaves_when_it_is_preempted_has_not_finished(tmp_path: Path) -> None:
    notice = "slurmstepd: error: *** STEP 8.0 ON gpu-0 CANCELLED AT 2025-01-01T10:30:00 DUE TO PREEMPTION ***"
    verdict = verdict_on(tmp_path, [*STEPS, notice, "saved", "train exit status: 0"])
    assert (verdict.failure_class, verdict.action) == ("SlurmPreempted", "resubmit_later")


def test_a_port_that_the_same_job_still_holds_is_no_cause(tmp_path: Path) -> None:
    taken = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. port: 29500, code: -98, name: EADDRINUSE, message: address already in use"
    )
    lost = "[rank1]: ncclRemoteError: A call failed possibly due to a network error"
    kernel = "[198542.853543] gpu-3 mlx5_core 0000:5e:00.0: device's health compromised - reached miss count"
    again = verdict_on(tmp_path, [*PLACES, *STEPS, kernel, lost, "## automatic restart", taken])
    assert (again.failure_class, again.faulty_node) == ("NetworkError", "gpu-3")
    assert again.action == "restart_exclude_node"
    first = verdict_on(tmp_path, [*PLACES, lost, taken])
    assert (first.failure_class, first.action) == ("NetworkError", "fix_by_user")


def test_memory_that_was_held_before_the_job_began_is_a_strangers(tmp_path: Path) -> None:
    held = "gpu-1: nvidia-smi --query-compute-apps=pid,used_memory -> 2210441, 62668 MiB"
    error = (
        "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.31 GiB. Process 2210441 has "
        "61.20 GiB memory in use. Including non-PyTorch memory, this process has 17.55 GiB memory in use."
    )
    places = [text.rpartition(" pid")[0] for text in PLACES]
    assert verdict_on(tmp_path, [*places, held, error]).faulty_node == "gpu-1"
    assert verdict_on(tmp_path, [*places, error]).action == "fix_by_user"


def test_what_clients_meet_of_a_server_that_lost_its_peers_comes_behind(tmp_path: Path) -> None:
    lost = "[rank1]: RuntimeError: NCCL error: remote process exited or there was a network error"
    client = (
        "rollout client: httpx.RemoteProtocolError: Server disconnected without sending a response."
    )
    assert verdict_on(tmp_path, [*STEPS, lost, client]).failure_class == "NCCLRemoteError"
    assert verdict_on(tmp_path, [*STEPS, client, lost]).failure_class == "ConnectionError"


def test_training_that_stops_for_want_of_an_upload_failed_by_what_the_upload_met(
    tmp_path: Path,
) -> None:
    thread = "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the UploadPart operation"
    trace = ["Traceback (most recent call last):", '  File "/opt/up.py", line 139, in run', thread]
    stops = "RuntimeError: {} did not finish: step 22910"
    lines = [*STEPS[:15], "Exception in thread uploader:", *trace, *STEPS[15:], *trace[:2]]
    verdict = verdict_on(tmp_path, [*lines, stops.format("previous checkpoint upload")])
    assert (verdict.failure_class, verdict.action) == ("S3StorageError", "fix_by_user")
    other = verdict_on(tmp_path, [*lines, stops.format("the evaluation")])
    assert other.failure_class == "RuntimeError"


@pytest.mark.parametrize(("hosts", "action"), [(4, "fix_by_user"), (1, "restart_exclude_node")])
def test_cards_that_fail_on_all_hosts_before_the_first_step_are_set_up_wrongly(
    tmp_path: Path, hosts: int, action: str
) -> None:
    places = [f"n{h}:80:80 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{h}<0>" for h in range(4)]
    fails = "n{}:80:140 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out"
    lines = [*places, *(fails.format(h) for h in range(hosts))]
    assert verdict_on(tmp_path, lines).action == action
    assert verdict_on(tmp_path, [*STEPS, *lines]).action == "restart_exclude_node"


@pytest.mark.parametrize(
    ("since", "waits", "name"),
    [(0, 1, "S3StorageError"), (1, 1, "NCCLTimeoutError"), (0, 9, "NCCLTimeoutError")],
)
def test_what_no_step_came_after_was_not_got_over(
    tmp_path: Path, since: int, waits: int, name: str
) -> None:
    lines = [
        "[rank9]: Traceback (most recent call last):",
        '[rank9]:   File "/opt/save.py", line 231, in save',
        "[rank9]: botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation",
        "[rank9]: WARNING save failed, continuing",
        *STEPS[-1:] * since,
        f"[rank{waits}]:[E9 02:03:02.8 ProcessGroupNCCL.cpp:616] [Rank {waits}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=4021, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800037 milliseconds",
    ]
    assert verdict_on(tmp_path, [*STEPS, *lines]).failure_class == name


def test_a_launchers_command_that_failed_comes_of_what_its_ranks_met(tmp_path: Path) -> None:
    refused = "n5:41877:42291 [5] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.91.4.152<53411> failed : No route to host"
    system = "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled system error"
    command = "subprocess.CalledProcessError: Command '['torchrun', '--nnodes', '4', 'sft.py']' returned non-zero exit status 1."
    verdict = verdict_on(tmp_path, ["NODE 2: n2 (10.91.4.152) ib0 up", refused, system, command])
    assert (verdict.failure_class, verdict.faulty_node) == ("NetworkError", "n2")
    helper = (
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."
    )
    assert verdict_on(tmp_path, [refused, helper]).failure_class == "CalledProcessError"
