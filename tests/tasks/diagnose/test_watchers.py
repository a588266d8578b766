"""Who is at fault by what was said beside the errors: stacks, NCCL's own reports, roll calls, hosts in trouble."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.records import Verdict
from tasks.diagnose.diagnose import diagnose_files
from tasks.diagnose.dumped_stacks import DumpedStacks
from tasks.diagnose.host_troubles import tells_trouble
from tasks.diagnose.logs import LogLine, make_line
from tasks.diagnose.ras_reports import RasReports
from tasks.diagnose.sources import Source

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


def verdict_on(tmp_path: Path, texts: list[str]) -> Verdict:
    log = tmp_path / "a.log"
    log.write_text("\n".join(texts))
    return diagnose_files([log])


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
