"""The node at fault, as tools and launchers of many makes tell it: gn03 of gn01 to gn04 in each of these logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.diagnose.diagnose import diagnose_files

STEPS = [f"[2025-01-01 10:{at:02}:00] iteration {at} loss: 2.{at}" for at in range(1, 40)]
NODES = "SLURM_JOB_NODELIST=gn[01-04]"
ECC = "[rank20]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
LOST = (
    "[rank3]: ncclRemoteError: A call failed possibly due to a remote process exiting prematurely."
)
RUNS = "[2025-01-01 11:40:00] state=RUNNING last output 2025-01-01 10:39:00"
HOSTS = [f"gn{at:02}" for at in range(1, 5)]
WAITS = ["    wait (torch/distributed/c10d.py:10)", "    all_reduce (fsdp.py:3)"]
READS = ["    read (os.py:3)", "    load (data.py:9)"]


def each(wording: str, well: str, ill: str) -> list[str]:
    return [wording.format(host, ill if host == "gn03" else well) for host in HOSTS]


BY_RANK = {
    "GPUs of a node": [NODES, "SLURM_GPUS_ON_NODE=8", *STEPS, ECC],
    "tasks of a node": ["SLURM_NODELIST=gn[01-04]", "SLURM_NTASKS_PER_NODE=8", *STEPS, ECC],
    "said": ["hosts: gn01 gn02 gn03 gn04, 8 GPUs a host", *STEPS, ECC],
    "formula": ["nodes gn01 gn02 gn03 gn04; rank = 8*node + local", *STEPS, ECC],
    "world": [NODES, "world_size=32", *STEPS, ECC],
    "LSF": ["Job was executed on host(s) <8*gn01>, <8*gn02>, <8*gn03>, <8*gn04>", *STEPS, ECC],
}
GONE = {
    "ssh": [
        "10.1.0.1 gn01",
        "10.1.0.3 gn03",
        *STEPS,
        LOST,
        "ssh: connect to host 10.1.0.3 port 22: No route to host",
    ],
    "ping": [NODES, *STEPS, LOST, *each("[check] ping {}: {} packet loss", "0%", "100%")],
    "sinfo": [
        NODES,
        *STEPS,
        LOST,
        "gpu up infinite 1 down* gn03",
        "gpu up infinite 3 alloc gn[01-02,04]",
    ],
    "scontrol": [
        *(NODES, *STEPS, LOST, "NodeName=gn03 Arch=x86_64"),
        "   State=DOWN*+DRAIN ThreadsPerCore=2 Reason=Not responding",
    ],
    "kubectl": [
        "pods: t-0 on gn01, t-1 on gn02, t-2 on gn03, t-3 on gn04",
        *(*STEPS, LOST, *each("{}   {}   <none>   41d", "Ready", "NotReady")),
    ],
    "uptime": [NODES, *STEPS, LOST, *each("{}: up {}", "41 days, 3:02", "3 min")],
    "chassis": [
        NODES,
        *STEPS,
        LOST,
        *each("ipmitool -H {}-bmc chassis status: System Power : {}", "on", "off"),
    ],
    "last seen": [NODES, *STEPS, *each("[agent] {} last seen {} s ago", "2", "311"), LOST],
    "members": [NODES, *STEPS, "[agent] heartbeats from: gn01, gn02, gn04 (3/4)", LOST],
}
HUNG = {
    "py-spy": [
        text
        for host in HOSTS
        for text in (
            *(f"=== {host} ===", "Process 4000: python train.py", "Python v3.11.4"),
            *('Thread 4000 (idle): "MainThread"', *(READS if host == "gn03" else WAITS)),
            *('Thread 4010 (idle): "Thread-1"', "    _run (x.py:3)"),
        )
    ],
    "fault handler": [
        "SLURM_GPUS_ON_NODE=1",
        *(
            f"[rank{rank}]: {text}"
            for rank in range(4)
            for text in (
                "Thread 0x00007f01 (most recent call first):",
                f'  File "{"data" if rank == 2 else "c10d"}.py", line 3 in {"read" if rank == 2 else "wait"}',
            )
        ),
    ],
    "record": each('{{"host":"{}","gpu_util":[{}]}}', "100,99", "0,0"),
    "table": each("{} | util {}% | mem 70 GiB", "99", "0"),
    "busy": each("{}: GPU busy {}%", "100", "0"),
}


@pytest.mark.parametrize("texts", BY_RANK.values(), ids=BY_RANK)
def test_a_rank_is_on_the_host_that_the_launch_gives_it(tmp_path: Path, texts: list[str]) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n".join(texts))
    assert diagnose_files([log]).faulty_node == "gn03"


def test_a_launch_that_has_not_so_many_ranks_places_none(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n".join([NODES, "SLURM_NTASKS_PER_NODE=1", *STEPS, ECC]))
    assert diagnose_files([log]).faulty_node is None


@pytest.mark.parametrize("texts", GONE.values(), ids=GONE)
def test_the_host_that_is_gone(tmp_path: Path, texts: list[str]) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n".join(texts))
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.faulty_node) == ("NodeFailure", "gn03")


@pytest.mark.parametrize("texts", HUNG.values(), ids=HUNG)
def test_the_host_that_the_others_wait_for(tmp_path: Path, texts: list[str]) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n".join([NODES, *STEPS, RUNS, *texts]))
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.faulty_node) == ("Hang", "gn03")


def test_the_host_whose_counters_rose_and_not_the_one_that_reports(tmp_path: Path) -> None:
    error = "gn01:3:3 [1] NCCL WARN NET/IB: Got completion with error 12, opcode 0"
    looks = "[ibmon] {} mlx5_0 {}"
    before = each(looks, "symbol_error=0 link_downed=0", "symbol_error=0 link_downed=0")
    after = each(looks, "symbol_error=0 link_downed=0", "symbol_error=9123 link_downed=2")
    log = tmp_path / "a.log"
    log.write_text("\n".join([NODES, *STEPS, *before, error, *after]))
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.faulty_node) == ("NetworkError", "gn03")


def test_time_outs_of_some_ranks_blame_no_host_by_the_launch_alone(tmp_path: Path) -> None:
    timed_out = [
        f"[rank{rank}]:[E1] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
        for rank in range(8)
    ]
    log = tmp_path / "a.log"
    log.write_text(
        "\n".join(["SLURM_JOB_NODELIST=gn[01-02]", "SLURM_GPUS_ON_NODE=8", *STEPS, *timed_out])
    )
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.faulty_node) == ("NCCLTimeoutError", None)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (
            "hosts: lw07 lw08 lw09\nRuntimeError: DataLoader worker (pid 8182) is killed by signal: Bus error.\n"
            "--- dmesg -T tail, lw08 ---\n[Mon May 19 11:00:02 2025] perf: interrupt took too long\n"
            "--- dmesg -T tail, lw09 ---\n[Mon May 19 20:06:58 2025] EDAC MC3: 1 UE memory read error on DIMM#0\n",
            "lw09",
        ),
        (
            "RuntimeError: DataLoader worker (pid 8182) is killed by signal: Bus error.\n"
            "---------------\nlw08\n---------------\n[Mon May 19 11:00:02 2025] perf: interrupt took too long\n"
            "---------------\nlw09\n---------------\n[Mon May 19 20:06:58 2025] EDAC MC3: 1 UE memory read error\n",
            "lw09",
        ),
        (
            "E0417 09:26:23 elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 84) of binary: py\n"
            "--- kubectl describe pod sft-worker-0 ---\nNode:             pool-2-xk4/10.60.2.9\n"
            "    State:          Terminated\n      Reason:       OOMKilled\n",
            "pool-2-xk4",
        ),
        (
            "SLURM_NODELIST ip-10-1-100-32,ip-10-1-36-207,ip-10-1-71-9\n"
            "[Auto Resume] Info: JobID: 1188 StepID: 0 Job failed - replacing nodes\n"
            "[Auto Resume] Info: JobID: 1188 Shrinking job to retain healthy nodes ip-10-1-100-32,ip-10-1-71-9\n"
            "srun: error: Unable to allocate resources: Requested nodes are busy\n",
            "ip-10-1-36-207",
        ),
        (
            "launching on i-0db7083f3fcbebb65 i-0ce6d3d57139f053c\n"
            "libfabric:45:17::efa:cq:handle_error():737<warn> err: 113, message: Unresponsive receiver (handshake failed) "
            "My host id: i-0db7083f3fcbebb65 Peer host id: i-0ce6d3d57139f053c (14)\n",
            "i-0ce6d3d57139f053c",
        ),
        (
            "".join(
                f"[hb] 13:{minute:02}:00 fr-{host} step={5000 + min(minute, 30)} gpu_util=99%\n"
                for minute in range(40)
                for host in (1, 2, 3, 4)
                if host != 3 or minute < 30
            )
            + "[logship] snapshot 2025-09-19T15:20:00 job=1 state=RUNNING last_output=2025-09-19T13:39:00\n",
            "fr-3",
        ),
    ],
)
def test_the_node_is_told_above_the_lines_or_beside_them(
    tmp_path: Path, text: str, node: str
) -> None:
    path = tmp_path / "job.log"
    path.write_text(text)
    assert diagnose_files([path]).faulty_node == node


@pytest.mark.parametrize(
    ("named", "node", "action"),
    [
        (["gn02", "gn03", "gn04", "gn01", "gn03"], None, "restart_same_nodes"),
        (["gn03", "gn03", "gn02", "gn03", "gn04"], "gn03", "restart_exclude_node"),
        (["gn03", "gn03"], "gn03", "restart_exclude_node"),
    ],
)
def test_peers_that_blame_each_other_in_a_ring_tell_no_node(
    tmp_path: Path, named: list[str], node: str | None, action: str
) -> None:
    said = "[rank{}]: socketProgress: Connection closed by remote peer {}<50633>"
    addresses = {name: f"10.1.0.{at}" for at, name in enumerate(HOSTS, 1)}
    table = [f"{address} {name}" for name, address in addresses.items()]
    closed = [said.format(9 * at, addresses[name]) for at, name in enumerate(named)]
    log = tmp_path / "a.log"
    log.write_text("\n".join([*table, NODES, *STEPS, LOST, *closed]))
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.faulty_node) == ("NCCLRemoteError", node)
    assert verdict.action == action


@pytest.mark.parametrize("host", ["localhost", "localhost.localdomain", "127.0.0.1"])
def test_what_every_host_calls_itself_names_none(tmp_path: Path, host: str) -> None:
    report = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2025-01-01_11:00:00",
        f"  host      : {host}",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 13)",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID 13",
    ]
    (tmp_path / "job.log").write_text("\n".join([*STEPS, *report]) + "\n")
    verdict = diagnose_files([tmp_path / "job.log"])
    assert verdict.faulty_rank == 1
    assert verdict.faulty_node is None


@pytest.mark.parametrize(
    ("told", "node"),
    [
        (["kubectl logs lm-0-3 (node gk-h100-3)"], "gk-h100-3"),
        (["node-agent gk-h100-3: dmesg after the job"], "gk-h100-3"),
        (["kubectl logs lm-0-3 (node gk-h100-3)", "moved to node gk-h100-4"], None),
        (["login node gk-h100-3: submitted"], None),
    ],
)
def test_the_one_host_that_a_log_speaks_of_is_where_its_hardware_fails(
    tmp_path: Path, told: list[str], node: str | None
) -> None:
    fault = "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"
    (tmp_path / "job.log").write_text("\n".join([*told, *STEPS, fault]) + "\n")
    verdict = diagnose_files([tmp_path / "job.log"])
    assert (verdict.failure_class, verdict.faulty_node) == ("ECCError", node)
