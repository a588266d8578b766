"""Whether a node, the site or the user is at fault, by more than the error's own line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on_text

STEPS = "".join(f"iter {n}/900 loss {3 - n / 1000:.4f}\n" for n in range(100, 160, 10))
TIMEOUT = (
    "[rank{0}]:[E8 10:30:30.34 ProcessGroupNCCL.cpp:523] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800074 milliseconds "
    "before timing out.\n"
)
RANKS = "".join(f"n0{1 + n // 2} rank {n} ready, model on meta device\n" for n in range(4))
FULL = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 1 has a total capacity of "
    "79.15 GiB of which 908.38 MiB is free. Process 2214 has 77.70 GiB memory in use. Including non-PyTorch memory, "
    "this process has 508.00 MiB memory in use.\n"
)
TOO_OLD = (
    "Traceback (most recent call last):\n"
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n"
)


def bars(*percents: int) -> str:
    return "".join(
        f"Map (num_proc=4): {p:3}%|##| {p * 10}/1000 [0{p % 10}:00<09:00, 77.1 examples/s]\n"
        for p in percents
    )


@pytest.mark.parametrize(
    ("before", "action"),
    [
        (bars(1, 20, 40, 60), "fix_by_user"),
        (bars(1, 40, 70, 100), "restart_same_nodes"),
        (
            bars(1, 20, 40).replace("Map", "Tokenizing").replace("examples/s", "it/s"),
            "fix_by_user",
        ),
        (
            bars(1, 20, 40).replace("Map", "Loading shards").replace("examples/s", "it/s"),
            "restart_same_nodes",
        ),
        (bars(1, 40, 70) + STEPS, "restart_same_nodes"),
    ],
)
def test_ranks_that_wait_while_data_is_prepared_need_more_time(
    tmp_path: Path, before: str, action: str
) -> None:
    verdict = verdict_on_text(tmp_path, before + TIMEOUT.format(3) + TIMEOUT.format(1))
    assert (verdict.failure_class, verdict.action) == ("NCCLTimeoutError", action)


@pytest.mark.parametrize(
    ("versions", "node", "action"),
    [
        (("550.127.05", "550.127.05", "470.82.01"), "n3", "restart_exclude_node"),
        (("470.82.01", "470.82.01", "470.82.01"), None, "fix_by_user"),
    ],
)
def test_a_driver_that_one_node_alone_has_is_that_nodes_fault(
    tmp_path: Path, versions: tuple[str, ...], node: str | None, action: str
) -> None:
    checks = "".join(f"n{n}: driver {version} ok\n" for n, version in enumerate(versions, 1))
    verdict = verdict_on_text(tmp_path, checks + TOO_OLD)
    assert (verdict.faulty_node, verdict.action) == (node, action)


@pytest.mark.parametrize(
    ("hosts", "action"),
    [(("n1", "n2"), "resubmit_later"), (("n1", "n1"), "fix_by_user")],
)
def test_a_file_server_that_several_hosts_lose_comes_back(
    tmp_path: Path, hosts: tuple[str, ...], action: str
) -> None:
    lost = "".join(
        f"[klog {host}] LustreError: 11-0: fs3-OST001c-osc: operation ost_write to node 10.2.0.28@o2ib failed: rc = -107\n"
        for host in hosts
    )
    tasks = (
        "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 8: Terminated\n"
    )
    text = lost + "[rank4]: OSError: [Errno 108] Cannot send after transport endpoint shutdown\n"
    verdict = verdict_on_text(tmp_path, text + tasks)
    assert (verdict.failure_class, verdict.action) == ("OSError", action)


@pytest.mark.parametrize(
    ("starts", "action"), [(3, "restart_exclude_node"), (1, "restart_same_nodes")]
)
def test_a_gpu_that_fails_in_each_start_is_excluded(
    tmp_path: Path, starts: int, action: str
) -> None:
    error = "[rank5]: RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(h)`\n"
    again = "I0409 agent/server/api.py:889] [default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    verdict = verdict_on_text(tmp_path, again.join([STEPS + error] * starts))
    assert (verdict.failure_class, verdict.action) == ("CUDAError", action)


@pytest.mark.parametrize(
    ("after", "action"),
    [
        (
            "[epilog n02] orphan: pid 2214 user x job 76991 (COMPLETED) serve\n",
            "restart_exclude_node",
        ),
        ("[epilog n02] process 2214 left over from another job\n", "restart_exclude_node"),
        ("[epilog n02] ended: pid 2214\n", "fix_by_user"),
    ],
)
def test_memory_that_a_process_left_over_holds_is_not_the_users(
    tmp_path: Path, after: str, action: str
) -> None:
    verdict = verdict_on_text(tmp_path, RANKS + FULL + after)
    assert (verdict.failure_class, verdict.action) == ("OutOfMemoryError", action)
    assert verdict.faulty_node == ("n02" if action == "restart_exclude_node" else None)


@pytest.mark.parametrize(
    "why", ["Unable to satisfy cpu bind request", "Requested node configuration is not available"]
)
def test_what_slurm_refuses_to_launch_the_user_mends(tmp_path: Path, why: str) -> None:
    text = "".join(
        f"srun: error: Task launch for StepId=6.0 failed on node k{n}: {why}\n" for n in (3, 1)
    )
    verdict = verdict_on_text(tmp_path, text + "srun: Job step aborted\n")
    assert (verdict.failure_class, verdict.action) == ("Unknown", "fix_by_user")
    assert verdict.faulty_node is None


def test_a_node_that_does_not_launch_is_at_fault(tmp_path: Path) -> None:
    text = "srun: error: Task launch for StepId=6.0 failed on node k3: Communication connection failure\n"
    verdict = verdict_on_text(tmp_path, text)
    assert (verdict.failure_class, verdict.faulty_node) == ("NodeFailure", "k3")


def test_a_shell_without_conda_is_the_users(tmp_path: Path) -> None:
    text = (
        "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n"
        "/var/spool/slurm_script: line 18: torchrun: command not found\n"
    )
    verdict = verdict_on_text(tmp_path, text)
    assert (verdict.failure_class, verdict.action, verdict.root_cause_line) == (
        "Unknown",
        "fix_by_user",
        1,
    )


@pytest.mark.parametrize(
    ("peers", "node"),
    [((("a2", "a2"), ("a1", "a1")), None), ((("a2", "a3"), ("a1", "a3")), "a3")],
)
def test_peers_that_each_host_names_of_itself_tell_no_node(
    tmp_path: Path, peers: tuple[tuple[str, str], ...], node: str | None
) -> None:
    lines = "".join(
        f"{who}:18{n}:18{n} [1] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer {peer}.x<47861>\n"
        for n, (who, peer) in enumerate(peers)
    )
    last = f"ncclInternalError: Internal check failed.\nLast error:\nNet : Connection closed by remote peer {peers[0][1]}.x<47861>\n"
    assert verdict_on_text(tmp_path, lines + last).faulty_node == node


@pytest.mark.parametrize(
    "line",
    [
        'Lmod has detected the following error:  The following module(s) are unknown: "cudnn/9.5"',
        "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'cuda/12.9'",
    ],
)
def test_a_module_that_is_not_there_the_user_mends(tmp_path: Path, line: str) -> None:
    verdict = verdict_on_text(tmp_path, f"== job 33107 ==\n{line}\ntrain.sbatch: set -e, exit 1\n")
    assert (verdict.failure_class, verdict.action) == ("Unknown", "fix_by_user")


@pytest.mark.parametrize(
    "wording", ["{}: mlx5_{} port 1 ==> ib2 ({})\n", "{}: link mlx5_{}/1 state {} netdev ib2\n"]
)
def test_checks_tell_ports_in_many_words(tmp_path: Path, wording: str) -> None:
    checks = "".join(
        wording.format(host, card, "Down" if (host, card) == ("g3", 2) else "Up")
        for host in ("g1", "g2", "g3", "g4")
        for card in range(4)
    )
    assert verdict_on_text(tmp_path, checks + TIMEOUT.format(3)).faulty_node == "g3"


def test_what_a_sites_prolog_misses_ends_no_job(tmp_path: Path) -> None:
    text = (
        "/etc/slurm/prolog.d/stats.sh: line 5: /run/gpustat/0: Permission denied\n"
        "pretrain.py: error: argument --resume: invalid choice: 'true' (choose from 'never', 'auto')\n"
    )
    verdict = verdict_on_text(tmp_path, text)
    assert (verdict.failure_class, verdict.root_cause_line) == ("ArgumentError", 2)
    alone = verdict_on_text(tmp_path, text.splitlines(keepends=True)[0])
    assert alone.failure_class == "PermissionError"


@pytest.mark.parametrize(
    ("down", "node"), [(("n13",), "n13"), (("n11", "n12", "n13"), None), ((), None)]
)
def test_a_port_that_one_host_alone_has_down_explains_a_job_that_never_began(
    tmp_path: Path, down: tuple[str, ...], node: str | None
) -> None:
    checks = "".join(
        f"[check-ib] {host} mlx5_{card} port 1 state: "
        + ("1: DOWN  phys state: 2: Polling\n" if host in down and card else "4: ACTIVE  LinkUp\n")
        for host in ("n11", "n12", "n13")
        for card in (0, 1)
    )
    verdict = verdict_on_text(tmp_path, checks + TIMEOUT.format(3) + TIMEOUT.format(1))
    assert verdict.faulty_node == node
    assert verdict.failure_class == ("NetworkError" if node else "NCCLTimeoutError")
    trained = verdict_on_text(tmp_path, checks + STEPS + TIMEOUT.format(3) + TIMEOUT.format(1))
    assert trained.failure_class == "NCCLTimeoutError"


def test_the_state_of_a_connection_is_none_of_a_port(tmp_path: Path) -> None:
    checks = "".join(
        f"g{host}: mlx5_5 port 1 state: {'1: DOWN' if host == 3 else '4: ACTIVE'}\n"
        for host in range(1, 5)
    )
    fails = "".join(
        f"g{host}:7:8 [5] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_5:1, "
        "curr state INIT, next state RTR\n"
        for host in (4, 2, 1)
    )
    verdict = verdict_on_text(tmp_path, checks + fails)
    assert (verdict.faulty_node, verdict.action) == ("g3", "restart_exclude_node")


def test_links_of_more_hosts_than_are_kept_are_no_hosts_fault(tmp_path: Path) -> None:
    hosts = [f"gn{at:02}" for at in range(32)]
    links = "".join(f"{host} kernel: mlx5_core 0000:1b:00.0 ib0: Link down\n" for host in hosts)
    verdict = verdict_on_text(tmp_path, f"NODELIST={' '.join(hosts)}\n{STEPS}{links}")
    assert (verdict.faulty_node, verdict.action) == (None, "restart_same_nodes")


@pytest.mark.parametrize(
    ("hosts", "node", "action"),
    [(("gn02",), "gn02", "restart_exclude_node"), (("gn02", "gn03"), None, "restart_same_nodes")],
)
def test_a_process_that_hangs_in_the_kernel_of_one_host_is_that_hosts(
    tmp_path: Path, hosts: tuple[str, ...], node: str | None, action: str
) -> None:
    kernel = "{} kernel: INFO: task python3:243998 blocked for more than 122 seconds.\n"
    text = "NODELIST=gn01 gn02 gn03\n" + STEPS + "".join(map(kernel.format, hosts))
    verdict = verdict_on_text(tmp_path, text)
    assert (verdict.failure_class, verdict.faulty_node, verdict.action) == ("Hang", node, action)


def test_torchs_report_of_a_desync_needs_no_dash(tmp_path: Path) -> None:
    places = "".join(f"[launch] rank {r} -> host tc{1 + r // 2} local {r % 2}\n" for r in range(6))
    report = (
        "\t   [{}] finished collective #5124, but didn't join collective #5125 (count from 1)\n"
    )
    verdict = verdict_on_text(tmp_path, places + STEPS + TIMEOUT.format(0) + report.format(3))
    assert (verdict.faulty_rank, verdict.faulty_node) == (3, "tc2")
