"""What several processes read comes to the verdict that one comes to, in whatever order files are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from configs.records import Verdict
from tasks.diagnose.diagnose import diagnose_scan
from tasks.diagnose.host_lists import HostLists
from tasks.diagnose.host_tables import HostTables
from tasks.diagnose.logs import LogLine, make_line
from tasks.diagnose.merge import merge
from tasks.diagnose.progress import Progress
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan
from tasks.diagnose.sources import source_of

STEPS = "".join(f"step {n} loss {2 - n / 1000:.3f}\n" for n in range(1, 40))
TIMED = "".join(f"2026-01-01 10:{n:02d}:00 iteration {n} tokens/s 1000\n" for n in range(1, 40))
DULL = "cleaning the scratch folder now\n" * 40
SRUN = "srun: error: gpu01: task 3: Exited with exit code 1\n"
TORCHRUN = "failed (exitcode: 1) local_rank: 3 (pid: 99) of binary: python\n"
CHILD_FAILED = (
    "Traceback (most recent call last):\n"
    '  File "/x/torch/distributed/run.py", line 9, in main\n    run(args)\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
)
CUDA = "[rank1]: CUDA error: an illegal memory access was encountered\n"
ECC = "[rank3]: CUDA error: uncorrectable ECC error encountered\n"
CANCELLED = "2026-01-01 14:59:30 slurmstepd: error: *** JOB 12 ON gpu01 CANCELLED AT 2026-01-01T14:59:30 ***\n"


def lines(name: str, text: str) -> list[LogLine]:
    source = source_of(name)
    pieces = enumerate(text.encode().splitlines(), start=1)
    return [line for n, piece in pieces if (line := make_line(piece, n, source)) is not None]


def scan_of(files: dict[str, str]) -> Scan:
    scan = Scan(default_rules())
    for name, text in files.items():
        scan.read(lines(name, text))
    return scan


def verdict_on(files: dict[str, str]) -> Verdict:
    """Of one scan, which is that of a scan for each file."""
    alone = diagnose_scan(scan_of(files))
    assert diagnose_scan(merge([scan_of({name: text}) for name, text in files.items()])) == alone
    return alone


@pytest.mark.parametrize("report", [SRUN, TORCHRUN, CHILD_FAILED])
@pytest.mark.parametrize("launcher_first", [False, True])
def test_a_launchers_report_of_a_failure_is_not_lost(report: str, launcher_first: bool) -> None:
    """Steps of another file do not show that training went on."""
    files = {"rank_0.log": STEPS, "slurm.out": f"job starts\n{report}{DULL}rc=0\n"}
    if launcher_first:
        files = dict(reversed(files.items()))
    assert verdict_on(files).failure_class != "NoFailure"


def test_a_childs_failure_is_one_in_the_same_file() -> None:
    files = {"job.log": f"{STEPS}{CHILD_FAILED}{DULL}rc=0\n"}
    assert verdict_on(files).failure_class != "NoFailure"


def test_a_failure_that_training_got_over_counts_no_more() -> None:
    later = TIMED.replace("10:", "11:")
    reported = f"[2026-01-01 10:40:00] {TORCHRUN}"
    assert verdict_on({"job.log": f"{STEPS}{TORCHRUN}{STEPS}rc=0\n"}).failure_class == "NoFailure"
    files = {"launcher.log": f"{reported}{DULL}rc=0\n", "stderr.log": TIMED + later}
    assert verdict_on(files).failure_class == "NoFailure"
    files["stderr.log"] = TIMED
    assert verdict_on(files).failure_class != "NoFailure"


def test_training_that_another_file_goes_on_with_has_not_come_to_its_end() -> None:
    files = {"rank_0.log": f"{STEPS}training finished\n", "rank_1.log": STEPS + CUDA}
    assert verdict_on(files).failure_class == "CUDAError"


@pytest.mark.parametrize(
    "texts",
    [
        [STEPS + "training finished\n", "step 40\nstep 41\n", "step 42\n"],
        [STEPS, "step 1\ntraining finished\nstep 2\n", "step 3\n"],
        [STEPS + "training finished\n", "training finished\n" + STEPS, "step 1\n"],
        ["training finished\n", "step 1\nstep 2\n", "training finished\n"],
    ],
)
def test_progress_is_put_together_as_it_is_read(texts: list[str]) -> None:
    files = [lines(f"{n}.log", text) for n, text in enumerate(texts)]
    alone, parts = Progress(), [Progress() for _ in files]
    for part, read in zip(parts, files, strict=True):
        for line in read:
            alone.feed(line)
            part.feed(line)
    whole = parts[0]
    for part in parts[1:]:
        whole.merge(part)
    assert whole == alone


def test_a_job_that_reports_no_losses_and_is_silent_for_long_hangs() -> None:
    files = {"a_job.log": "start\n", "rank_0.log": TIMED, "z.out": CANCELLED}
    assert verdict_on(files).failure_class == "Hang"


def test_an_address_that_several_hosts_have_is_of_none() -> None:
    texts = {
        f"{host}.log": f"{host}:100:100 [0] NCCL INFO Bootstrap : Using eth0:172.18.0.2<0>\n{STEPS}"
        for host in ("gpu01", "gpu02", "gpu03")
    }
    texts["gpu03.log"] += (
        "gpu03:1:2 [0] NCCL WARN Connection closed by remote peer 172.18.0.2<51>\n"
    )
    verdict = verdict_on(texts)
    assert (verdict.faulty_node, verdict.action) == (None, "restart_same_nodes")


def test_a_rank_that_two_files_place_differently_is_nowhere() -> None:
    told = "".join(f"init rank {rank} at gpu0{1 + rank // 2} ready\n" for rank in range(4))
    files = {"a.log": told, "b.log": f"init rank 3 at gpu01 ready\n{ECC}"}
    assert verdict_on(files).faulty_node is None
    tables = [HostTables(), HostTables()]
    for table, (name, text) in zip(tables, files.items(), strict=True):
        for line in lines(name, text):
            table.feed(line)
    tables[0].merge(tables[1])
    assert 3 not in tables[0].by_rank(set())


def test_hosts_whose_names_stand_alone_in_files_of_their_own_are_known() -> None:
    said = "kernel says uncorrectable ECC error at gnode02 slot 3\n"
    files = {f"node{n}.log": f"gnode{n:02d}\n{STEPS}{said * (n == 3)}" for n in range(4)}
    assert verdict_on(files).faulty_node == "gnode02"


def test_the_first_word_on_a_hosts_slots_counts() -> None:
    files = {
        "a.log": f"gpu01 slots=2\ngpu02 slots=2\n{STEPS}",
        "b.log": f"gpu01 slots=8\ngpu02 slots=8\n{STEPS}{ECC}",
    }
    assert verdict_on(files).faulty_node == "gpu02"


def test_lists_of_two_parts_are_one() -> None:
    texts = [["n1", "n3", "a1: ranks 0-3"], ["n2", "4 gpus each", "b1, b2, 2 gpus each"]]
    alone, parts = HostLists(), [HostLists(), HostLists()]
    for part, read in zip(parts, texts, strict=True):
        for text in read:
            alone.feed(text, None)
            part.feed(text, None)
    parts[0].merge(parts[1])
    assert (set(parts[0].hosts), parts[0].each) == (set(alone.hosts), alone.each)


@pytest.mark.parametrize("silent_first", [False, True])
def test_files_that_are_read_one_by_one_do_not_tell_who_stopped_to_write(
    silent_first: bool,
) -> None:
    hosts = ["gpu01", "gpu02", "gpu03"][:: -1 if silent_first else 1]
    files = {f"{host}.log": TIMED.replace(":00 iter", f":00 {host}: iter") for host in hosts}
    files["slurm.out"] = "2026-01-01 14:59:30 job 12 state=RUNNING\n"
    verdict = verdict_on(files)
    assert (verdict.failure_class, verdict.faulty_node) == ("Hang", None)


def troubles(scan: Scan) -> object:
    return scan.watchers.troubles.first["gpu07"].line.file


def idle(scan: Scan) -> object:
    return scan.idle_hosts.idle_without_a_step(scan.progress.steps_in)


LOOK = "gpu01 util=99\ngpu02 util={}\ngpu03 util=98\n"
COUNTERS = "gpu01:\nsymbol errors: 5\ngpu02:\nsymbol errors: {}\n"
BEHIND = (
    "31 ranks have launched up to operation 416650\n1 rank has launched up to operation 416649\n"
    "Rank 22 -- GPU 6 managed by process 1483966 on node gpu07\n"
)
ALL_WELL = "32 ranks have launched up to operation 416900\n"
SACCT = "12|train|CANCELLED|gpu01\n"


@pytest.mark.parametrize(
    ("texts", "told", "expected"),
    [
        (["node gpu07 is not responding\n"] * 2, troubles, "1.log"),
        (
            ["".join(f"Map: {n}%|#  | 1/9\n" for n in (10, 20, 30, 40)), "Map: 100%|##| 9/9\n"],
            lambda scan: scan.watchers.preparation.under_way(),
            False,
        ),
        (
            [COUNTERS.format(7), COUNTERS.format(9), COUNTERS.format(30)],
            lambda scan: scan.watchers.counters.risen,
            {"gpu02": 23},
        ),
        ([LOOK.format(0), LOOK.format(0)], idle, "gpu02"),
        ([LOOK.format(0), LOOK.format(50) + LOOK.format(0)], idle, None),
        (
            ["[rank0]: shard 1/8 written\n", "[rank0]: shard 1/4 written\n"],
            lambda scan: scan.roll_call.total,
            4,
        ),
        (
            ["running on gpu[01-02]\n", "SLURM_JOB_NODELIST=gpu[05-06]\n", "on gpu[07-08]\n"],
            lambda scan: list(scan.topology.tables.lists.job),
            ["gpu05", "gpu06"],
        ),
        (
            ["rank 0 pid 10\n    f (a.py:1)\n", "    g (b.py:2)\nrank 1 pid 11\n    h (c.py:3)\n"],
            lambda scan: scan.watchers.stacks.places,
            {(0, None, 10): ("f",), (1, None, 11): ("h",)},
        ),
        ([BEHIND, ALL_WELL], lambda scan: scan.watchers.ras.line, None),
        ([ALL_WELL, BEHIND], lambda scan: scan.watchers.ras.node, "gpu07"),
        ([DULL, SACCT], lambda scan: scan.accounting.ending().order, 41),
        (
            ["WARNING: CUDA error: out of memory, retrying\n" * 6] * 2,
            lambda scan: [f.line.file for f in scan.asides],
            ["0.log"] * 2 + ["1.log"] * 6,
        ),
    ],
)
def test_what_is_told_over_several_files_is_put_together(
    texts: list[str], told: Callable[[Scan], object], expected: object
) -> None:
    files = {f"{n}.log": text for n, text in enumerate(texts)}
    parts = merge([scan_of({name: text}) for name, text in files.items()])
    assert [told(scan_of(files)), told(parts)] == [expected, expected]
