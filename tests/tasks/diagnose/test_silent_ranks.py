"""The one rank that hangs: by how long ago it was heard of, by its own reports, by what a look at all finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on

MAP = [f"rank={r} node=gn0{1 + r // 8} pid=7{r:02}" for r in range(32)]
STEPS = [f"[2025-01-01 10:00:{at:02}] iteration {at} loss: 2.{at}" for at in range(1, 40)]
RUNS = "[2025-01-01 10:12:00] job RUNNING, exit codes none"
TIMED_OUT = [
    f"[rank{r}]:[E606 06:25:50.5 ProcessGroupNCCL.cpp:635] [Rank {r}] Watchdog caught collective operation timeout: "
    f"WorkNCCL(SeqNum=77001, OpType=_ALLGATHER_BASE, Timeout(ms)=300000) ran for 300018 milliseconds"
    for r in (2, 9, 30, 25)
]


@pytest.mark.parametrize(
    "told",
    [
        ["[hb] last heartbeat ages (s): 0:4 5:2 9:5 13:8 20:664 31:6 (limit 7200)"],
        [
            "hangdoctor: last-seen heartbeat per rank (s): 0-15: 30, 24-31: 30, 16-19: 31, 20: 664, 21-23: 30"
        ],
        ["monitor: last seen r0=4s r1=5s r2=3s r20=664s r31=2s"],
        ["liveness {0: 3.1, 1: 2.9, 20: 664.2, 31: 1.0}"],
        [f"rank {r}: last heartbeat {664 if r == 20 else 4} s ago" for r in (0, 9, 20, 31)],
    ],
)
@pytest.mark.parametrize("ends", [[RUNS], TIMED_OUT])
def test_a_rank_not_heard_of_for_long_hangs(
    told: list[str], ends: list[str], tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, [*MAP, *STEPS, *told, *ends])
    assert verdict.failure_class == ("Hang" if ends == [RUNS] else "NCCLTimeoutError")
    assert (verdict.faulty_rank, verdict.faulty_node) == (20, "gn03")


@pytest.mark.parametrize(
    "told",
    [
        "[hb] last heartbeat ages (s): 0:4 5:2 9:5 13:8 20:6 31:6 (limit 7200)",
        "[hb] last heartbeat ages (s): 0:604 5:602 9:605 13:608 20:664 31:606",
        "last step times (s): 0:4 1:4 2:90",
    ],
)
def test_ranks_that_are_heard_of_alike_do_not_hang(told: str, tmp_path: Path) -> None:
    assert verdict_on(tmp_path, [*MAP, *STEPS, told, RUNS]).failure_class == "NoFailure"


def test_a_rank_that_was_silent_before_further_steps_does_not_hang(tmp_path: Path) -> None:
    told = "[hb] last heartbeat ages (s): 0:4 5:2 9:5 13:8 20:664 31:6"
    assert verdict_on(tmp_path, [*MAP, told, *STEPS, RUNS]).failure_class == "NoFailure"


@pytest.mark.parametrize(
    "wording",
    [
        "09:{at:02}:30 p{r:02} step={step} phase=optim.step q=8",
        "09:{at:02}:30 r{r:02} hb phase=wait step={step}",
        "[09:{at:02}:30] r{r} upd {step} nll=2.4",
        "09:{at:02}:30 INFO |r{r}| step={step} ce=1.6",
        "[2025-01-01T09:{at:02}:30Z] {{rank {r}}} step {step} nll 3.1",
    ],
)
def test_a_rank_that_stays_a_step_behind_while_all_report_hangs(
    wording: str, tmp_path: Path
) -> None:
    def reports(at: int, step: int, behind: int) -> list[str]:
        return [
            wording.format(at=at, r=r, step=step - behind if r == 20 else step)
            for r in range(0, 32, 4)
        ]

    went = [line for at in range(10) for line in reports(at, 10 * at, 0)]
    stands = [line for at in range(10, 18) for line in reports(at, 100, 10)]
    verdict = verdict_on(tmp_path, [*MAP, *went, *stands])
    assert (verdict.failure_class, verdict.faulty_rank, verdict.faulty_node) == ("Hang", 20, "gn03")
    assert verdict_on(tmp_path, [*MAP, *went]).failure_class != "Hang"


def test_stacks_in_records_tell_who_waits_for_a_disk(tmp_path: Path) -> None:
    waits = "all_reduce (torch/distributed/distributed_c10d.py:2810) <- clip_grad_norm_ (t.py:101)"
    reads = "_next_data (torch/utils/data/dataloader.py:708) <- train_step (t.py:90)"
    stacks = [f'{{"rank":{r},"stack":"{reads if r == 20 else waits}"}}' for r in range(32)]
    noticed = "progress monitor: no step since 39 for 5400 s, state=RUNNING, dumping stacks"
    verdict = verdict_on(tmp_path, [*MAP, *STEPS, noticed, *stacks])
    assert (verdict.failure_class, verdict.faulty_node) == ("Hang", "gn03")


@pytest.mark.parametrize(
    "told",
    [
        "monitor: heartbeat of rank 20 stale for 664 s, all other ranks fresh",
        "monitor: no heartbeat from rank 20 since 10:05:00, other ranks fine",
        "watchdog: rank 20 stopped sending heartbeats 664 s ago",
        "hang report: 31/32 ranks entered all_gather #77001, absent: [20]",
        "fr_trace: 31 dumps found, rank 20 has no dump (process does not answer)",
        "fr_trace: Rank 20 does not join collective: pg 0 seq 77001; last entry: state=completed seq 77000",
    ],
)
def test_the_rank_without_a_record_is_the_one_waited_for(told: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, [*MAP, *STEPS, *TIMED_OUT, told])
    assert (verdict.failure_class, verdict.faulty_node) == ("NCCLTimeoutError", "gn03")


@pytest.mark.parametrize(
    "told",
    [
        [
            "-- log copied 2025-01-01 13:20:00 while job 40912 was RUNNING; file mtime 2025-01-01 10:00:41"
        ],
        [
            ">>> tail -F: last line written 2025-01-01T10:00:41Z",
            ">>> log collected 2025-01-01T14:02:40Z; kubectl: 32/32 pods Running, restarts 0",
        ],
        ["I0101 13:30:00.0 1 captured by cron: pod phase Running; no new line since 10:00:41"],
    ],
)
def test_a_copy_of_a_running_log_that_stopped_long_ago_hangs(
    told: list[str], tmp_path: Path
) -> None:
    steps = [f"completed step: {at}, loss: 2.{at}" for at in range(1, 40)]
    assert verdict_on(tmp_path, [*steps, *told]).failure_class == "Hang"
    soon = [line.replace(" 13:20", " 10:05").replace("T14:02", "T10:05") for line in told]
    soon = [line.replace("0101 13:30", "0101 10:05") for line in soon]
    assert verdict_on(tmp_path, [*steps, *soon]).failure_class != "Hang"
