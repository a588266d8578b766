"""Who is at fault by what was said beside the errors: stacks, NCCL's own reports, roll calls, hosts in trouble."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.diagnose.absence import IdleHosts
from tasks.diagnose.driver_versions import tells_driver
from tasks.diagnose.dumped_stacks import DumpedStacks
from tasks.diagnose.gpu_strangers import tells_of_gpu_process
from tasks.diagnose.host_troubles import tells_trouble
from tasks.diagnose.logs import LogLine, make_line
from tasks.diagnose.port_checks import tells_port
from tasks.diagnose.ras_reports import RasReports
from tasks.diagnose.sources import Source
from tests.tasks.diagnose.one_log import verdict_on

STEPS = [f"[2025-01-01 10:{at:02}:00] iteration {at} loss: 2.{at}" for at in range(1, 30)]
HOSTS = "SLURM_JOB_NODELIST=gn[01-04]"
LOST = (
    "[rank3]: ncclRemoteError: A call failed possibly due to a remote process exiting prematurely."
)
SILENT = "[2025-01-01 11:20:00] watchdog: no step completed for 3000 s, job state RUNNING"


def lines(texts: list[str]) -> list[LogLine]:
    source = Source(Path("a.log"), "a.log")
    made = (make_line(text.encode(), n, source) for n, text in enumerate(texts, start=1))
    return [line for line in made if line is not None]


WAITS = ["    wait_stream (torch/fsdp/_group.py:331)", "    backward (torch/_tensor.py:581)"]
READS = ["    read (data/shards.py:40)", "    __next__ (data/loader.py:88)"]


@pytest.mark.parametrize(
    "head",
    [
        '--- rank {rank} ({host}) Thread 21{rank:02} (active): "MainThread"',
        "[gn-dump] {host} rank={rank} pid 21{rank:02}",
    ],
)
def test_the_process_that_is_elsewhere_than_all_others_does_not_come(head: str) -> None:
    texts = [
        text
        for rank in range(8)
        for text in [
            head.format(rank=rank, host=f"gn{rank // 2:02}"),
            *(READS if rank == 5 else WAITS),
        ]
    ]
    stacks = DumpedStacks()
    for line in lines(texts):
        stacks.feed(line)
    assert stacks.odd_one() == (5, "gn02")


def test_stacks_that_stand_in_one_line_each_are_read_too(tmp_path: Path) -> None:
    waits = "MainThread: wait (torch/c10d.py:2810) <- all_reduce (fsdp.py:431) <- fit (train.py:3)"
    reads = "MainThread: read_bytes (pathlib.py:1050) <- fit (train.py:9)   [D state]"
    dump = [
        f"gn{host:02}: pid {4000 + at}: {reads if (host, at) == (3, 1) else waits}"
        for host in range(1, 5)
        for at in range(4)
    ]
    asked = "operator: no new output for 50 min: pdsh -w gn01,gn02,gn03,gn04 py-spy dump"
    verdict = verdict_on(tmp_path, [HOSTS, *STEPS, asked, *dump])
    assert (verdict.failure_class, verdict.faulty_node) == ("Hang", "gn03")
    alike = verdict_on(tmp_path, [HOSTS, *STEPS, asked, *(d.replace(reads, waits) for d in dump)])
    assert alike.faulty_node is None


def test_where_every_process_is_elsewhere_nobody_is_named() -> None:
    stacks = DumpedStacks()
    for line in lines(
        [t for r in range(8) for t in (f"rank {r} pid 10{r}", f"    step_{r} (train.py:{r})")]
    ):
        stacks.feed(line)
    assert stacks.odd_one() is None


RAS = [
    "#0-0 (27a079b828ff1a75) MISMATCH",
    "  Communicator ranks have different collective operation counts",
    "  31 ranks have launched up to operation 416650",
    "  1 rank has launched up to operation 416649",
    "  Rank 22 -- GPU 6 managed by process 1483966 on node 10.8.4.37",
]


def test_nccls_own_report_names_the_rank_that_is_behind(tmp_path: Path) -> None:
    hosts = [f"10.8.4.{at} gn0{at - 34}" for at in (35, 36, 37, 38)]
    verdict = verdict_on(tmp_path, [*hosts, *STEPS, *RAS])
    assert (verdict.failure_class, verdict.faulty_rank) == ("Hang", 22)
    assert (verdict.faulty_node, verdict.action) == ("gn03", "restart_exclude_node")
    assert verdict_on(tmp_path, [*hosts, *RAS, *STEPS]).failure_class != "Hang"


def test_a_rank_that_is_ahead_is_not_the_one_that_is_missing() -> None:
    ras = RasReports()
    ahead = [text.replace("416649", "416651") for text in RAS]
    for line in lines(ahead):
        ras.feed(line, 0)
    assert ras.line is None
    for line in lines(["  Process 3487984 on node 10.8.4.36 managing GPU 5"]):
        ras.feed(line, 0)
    assert ras.node == "10.8.4.36"


def test_a_host_that_does_nothing_for_several_looks_holds_up_the_job(tmp_path: Path) -> None:
    def look(at: int, idle: bool) -> list[str]:
        shares = {
            host: "0 0" if idle and host == "gn03" else "98 100"
            for host in ("gn01", "gn02", "gn03")
        }
        return [
            f"[telemetry 11:{at:02}] {h} gpu_util% {s} power_w 600 600" for h, s in shares.items()
        ]

    hung = [*STEPS, *look(1, idle=False), *look(6, idle=True), *look(11, idle=True)]
    verdict = verdict_on(tmp_path, [*hung, "[capture] 11:13 state=RUNNING"])
    assert (verdict.failure_class, verdict.faulty_node) == ("Hang", "gn03")
    assert verdict_on(tmp_path, [*hung, *STEPS]).failure_class != "Hang"
    assert verdict_on(tmp_path, hung[: -len(look(11, idle=True))]).failure_class != "Hang"


@pytest.mark.parametrize(
    "text",
    [
        "srun: error: slurm_receive_msgs: [[gn03]:6818] failed: Socket timed out on send/recv operation",
        "[launcher] ssh gn03 pkill: ssh: connect to host gn03 port 22: No route to host",
        "Not responding       slurm     2025-09-12T22:02:17 gn03",
        "WARNING - Node gn03(10.0.41.203) failed scheduled_events_check: instance-retirement",
        "bmc-gn03: SEL: 1f8 | 08/02/2025 | Power Unit #0x01 | Power off/down | Asserted",
    ],
)
def test_the_member_that_is_in_trouble_is_the_one_that_was_lost(tmp_path: Path, text: str) -> None:
    others = "Not responding       slurm     2025-09-11T22:02:17 login17"
    lost = verdict_on(tmp_path, [HOSTS, *STEPS, others, text, LOST])
    assert (lost.failure_class, lost.faulty_node) == ("NodeFailure", "gn03")
    ended = "slurmstepd: error: *** JOB 7 ON gn01 CANCELLED AT 2025-01-01T10:30:00 DUE TO NODE FAILURE ***"
    assert verdict_on(tmp_path, [HOSTS, *STEPS, text, ended]).faulty_node == "gn03"
    # What training went on after, and what is told of two hosts, says nothing.
    assert verdict_on(tmp_path, [HOSTS, text, *STEPS, LOST]).failure_class == "NCCLRemoteError"
    both = [text, text.replace("gn03", "gn02")]
    assert verdict_on(tmp_path, [HOSTS, *STEPS, *both, LOST]).failure_class != "NodeFailure"


def test_what_is_told_of_a_host_that_is_well_is_no_trouble() -> None:
    fine = ["ssh gn03 pkill: ok", "gn03: health check passed", "[launcher] host gn03 is up"]
    assert not any(tells_trouble(line) for line in lines(fine))


def test_the_host_that_does_not_answer_the_roll_call_is_gone(tmp_path: Path) -> None:
    def call(names: list[str]) -> str:
        return f"[rollcall 12:0{len(names)}:00] {' '.join(names)}"

    every = [f"n{at:02}" for at in (3, 4, 5, 9, 12, 13)]
    short = call([name for name in every if name != "n12"])
    lost = [
        f"n{at:02}:77:86 [4] socket.cc:484 NCCL WARN Connect to 10.1.0.12<58> failed : No route to host"
        for at in (3, 5)
    ]
    verdict = verdict_on(tmp_path, [*STEPS, call(every), call(every[::-1]), short, *lost])
    assert (verdict.failure_class, verdict.faulty_node) == ("NodeFailure", "n12")
    assert verdict.root_cause_line == len(STEPS) + 3
    assert (
        verdict_on(tmp_path, [*STEPS, call(every), call(every), *lost]).failure_class
        == "NetworkError"
    )


def test_links_that_go_down_on_all_hosts_are_no_hosts_fault(tmp_path: Path) -> None:
    def down(hosts: range) -> list[str]:
        return [f"gn{at:02} kernel: mlx5_core 0000:0c:00.0 ens{at}f0: Link down" for at in hosts]

    switch = verdict_on(tmp_path, [HOSTS, *STEPS, *down(range(1, 5)), LOST])
    assert (switch.failure_class, switch.faulty_node) == ("NetworkError", None)
    assert switch.action == "restart_same_nodes"
    one = verdict_on(tmp_path, [HOSTS, *STEPS, *down(range(2, 3)), LOST])
    assert (one.faulty_node, one.action) == ("gn02", "restart_exclude_node")


def test_a_daemon_is_called_after_its_host(tmp_path: Path) -> None:
    killed = "slurmstepd-gn03: error: Detected 1 oom_kill event in StepId=88771.extern."
    assert verdict_on(tmp_path, [HOSTS, *STEPS, killed]).faulty_node == "gn03"


def nvlink(host: str, when: str, replays: int) -> list[str]:
    counts = [f"  Link {at}: Replay Errors: {replays if at == 1 else 0}" for at in range(3)]
    return [f"===== {host} | {when} | 2026-03-09T15:22:43Z =====", "GPU 1: NVIDIA GB300", *counts]


def test_counters_that_have_risen_tell_the_node(tmp_path: Path) -> None:
    error = "[rank{}]: torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected"
    errors = [error.format(rank) for rank in (3, 9)]
    before = [
        *nvlink("gn01", "before", 0),
        *nvlink("gn02", "before", 7),
        *nvlink("gn03", "before", 0),
    ]
    after = [
        *nvlink("gn01", "after", 0),
        *nvlink("gn02", "after", 7),
        *nvlink("gn03", "after", 6553),
    ]
    verdict = verdict_on(tmp_path, [*before, *STEPS, *errors, *after])
    assert (verdict.failure_class, verdict.faulty_node) == ("NVLinkError", "gn03")
    # What a counter held before says nothing of this job.
    assert verdict_on(tmp_path, [*before, *STEPS, *errors, *before]).faulty_node is None


def test_a_ray_tasks_error_is_of_the_node_where_it_ran(tmp_path: Path) -> None:
    error = [
        "Traceback (most recent call last):",
        '  File "/w/main.py", line 64, in main',
        "ray.exceptions.RayTaskError(RuntimeError): ray::Worker.update() (pid=52, ip=10.8.0.32, actor_id=0e5b)",
        '  File "/w/worker.py", line 512, in update',
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    ]
    nodes = "cluster map: gn01=10.8.0.31 gn02=10.8.0.32"
    assert verdict_on(tmp_path, [nodes, *STEPS, *error]).faulty_node == "gn02"
    assert verdict_on(tmp_path, [*STEPS, *error]).faulty_node == "10.8.0.32"


def test_mpiruns_map_tells_the_node_of_a_container(tmp_path: Path) -> None:
    ranks = {"rack4-n03": (0, 1), "rack5-n01": (2, 3)}
    job_map = [
        text
        for host, of_host in ranks.items()
        for text in (
            f" Data for node: {host}\tNum slots: 2",
            *(
                f" \tProcess OMPI jobid: [31,1] App: 0 Process rank: {rank} Bound: N/A"
                for rank in of_host
            ),
        )
    ]
    event = (
        "[1,3]<stdout>:container-e311-000058:812:864 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : "
        "Got async event : local catastrophic error"
    )
    failed = "[1,3]<stdout>:container-e311-000058:812:864 [0] misc/ibvwrap.cu:220 NCCL WARN Call to ibv_get_async_event failed"
    assert verdict_on(tmp_path, [*job_map, *STEPS, event, failed]).faulty_node == "rack5-n01"


def test_a_row_of_pods_and_nodes_places_them(tmp_path: Path) -> None:
    row = "vlm-pt-master-0 on aks-h100-31, vlm-pt-worker-0 on aks-h100-36, vlm-pt-worker-1 on aks-h100-40"
    killed = "vlm-pt-worker-0    0/1    OOMKilled   0         OOMKilled (exit code 137)"
    assert verdict_on(tmp_path, [row, *STEPS, killed]).faulty_node == "aks-h100-36"


def test_a_bus_that_a_gpu_fell_off_is_told_over_three_lines(tmp_path: Path) -> None:
    kernel = [
        "gn02 kernel: [51843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "gn02 kernel:                NVRM: (PCI ID: 10de:2330) installed in this system has",
        "gn02 kernel:                NVRM: fallen off the bus and is not responding to commands.",
    ]
    error = "[rank9]: RuntimeError: CUDA error: unspecified launch failure"
    verdict = verdict_on(tmp_path, [HOSTS, *STEPS, error, *kernel])
    assert (verdict.failure_class, verdict.faulty_node) == ("CUDAError", "gn02")


def test_a_counter_of_double_bit_errors_is_a_memory_fault(tmp_path: Path) -> None:
    def look(count: int) -> str:
        return f'[exporter] DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{gpu="6",Hostname="gn03",modelName="A100"}} {count}'

    error = "[rank17]: RuntimeError: CUDA error: unspecified launch failure"
    bad = verdict_on(tmp_path, [HOSTS, look(0), *STEPS, look(1), error])
    assert (bad.failure_class, bad.faulty_node) == ("ECCError", "gn03")
    assert (
        verdict_on(tmp_path, [HOSTS, look(0), *STEPS, look(0), error]).failure_class == "CUDAError"
    )


def test_the_peer_that_libfabric_names_is_at_fault(tmp_path: Path) -> None:
    nodes = [f"[boot] ip-10-1-0-{at} = i-0a1b2c3d4e5f6a7b{at} efa_devices=32" for at in (1, 2, 3)]
    said = [
        "libfabric:43:17::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Unresponsive remote "
        f"My host id: i-0a1b2c3d4e5f6a7b{at} Peer EFA addr: fi_addr_efa://[fe80::b8] Peer host id: i-0a1b2c3d4e5f6a7b2"
        for at in (1, 3)
    ]
    warned = "ip-10-1-0-1:45:47 [4] NCCL WARN NET/OFI Request 0x7f completed with error. RC: 5. Error: Input/output error."
    verdict = verdict_on(tmp_path, [*nodes, *STEPS, said[0], warned, said[1]])
    assert (verdict.failure_class, verdict.action) == ("NetworkError", "restart_exclude_node")
    assert verdict.faulty_node in ("i-0a1b2c3d4e5f6a7b2", "ip-10-1-0-2")


@pytest.mark.parametrize("made", [str, str.upper, str.title])
def test_what_is_looked_for_in_any_case_is_not_passed_over_for_its_case(
    made: Callable[[str], str],
) -> None:
    """Cheap looks at words come before patterns, and must let through all that these take."""
    trouble, process, port, driver, utilization = lines(
        [
            f"gn03 {made('is unreachable')}",
            made("epilog: orphan process=4211 holds the device"),
            f"gn03 mlx5_0 {made('state: down')}",
            f"gn03 {made('driver_version=')}535.104.05",
            f"gn03 {made('util')}=98",
        ]
    )
    assert tells_trouble(trouble)
    assert tells_of_gpu_process(process.body)
    assert tells_port(port)
    assert tells_driver(driver)
    idle = IdleHosts()
    idle.feed(utilization, 0)
    assert idle.busy == {"gn03": 98}
