"""Rows of sacct at a log's end: how the job ended, by the row that is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on

STEPS = [f"step {n} | loss {3 - n / 100:.3f} | lr 1e-4" for n in range(30)]
TERMINATED = [
    "RuntimeError: DataLoader worker (pid 44) is killed by signal: Terminated. ",
    "srun: error: g2: task 1: Terminated",
]
TABLE = [
    "JobID      JobName      State ExitCode  NodeList",
    "---------- -------- ---------- -------- ---------",
]
FAULT = [
    "Traceback (most recent call last):",
    '  File "t.py", line 3, in step',
    "KeyError: 'labels'",
]


@pytest.mark.parametrize(
    ("rows", "failure_class", "row"),
    [
        (
            [
                *TABLE,
                "501 a NODE_FAIL 0:0 x7",
                "502 b TIMEOUT 0:0 g[1-2]",
                "502.0 b FAILED 1:0 g[1-2]",
            ],
            "SlurmTimeLimit",
            4,
        ),
        (
            ["sacct: 502|b|PREEMPTED|0:0|g[1-2]", "sacct: 509|c|OUT_OF_MEMORY|0:125|x1"],
            "SlurmPreempted",
            1,
        ),
        (
            [
                "502|b|CANCELLED by 1204|0:0|g[1-2]",
                "502.batch|b|CANCELLED|0:15|g1",
                "488|b|TIMEOUT|0:0|g[1-2]",
            ],
            "SlurmCancelled",
            1,
        ),
        (
            ["[epilog] sacct -j 502 -X -o State%20,ExitCode -n:     CANCELLED by 1204      0:0"],
            "SlurmCancelled",
            1,
        ),
        (["[epilog] sacct -X -j 502: OUT_OF_MEMORY 0:125"], "CgroupOOM", 1),
    ],
)
def test_the_jobs_own_row_says_how_it_ended(
    tmp_path: Path, rows: list[str], failure_class: str, row: int
) -> None:
    lines = [*STEPS, *TERMINATED, *rows]
    verdict = verdict_on(tmp_path, lines)
    expected = (failure_class, len(STEPS) + len(TERMINATED) + row)
    assert (verdict.failure_class, verdict.root_cause_line) == expected


@pytest.mark.parametrize(
    ("lines", "failure_class"),
    [
        ([*STEPS, *FAULT, "502|b|CANCELLED by 1204|0:0|g[1-2]"], "KeyError"),
        (
            [*STEPS, *TERMINATED, "502|b|TIMEOUT|0:0|x1", "503|b|NODE_FAIL|0:0|x2"],
            "DataloaderKilled",
        ),
        (
            [*STEPS, *TERMINATED, "502|b|FAILED|0:15|g[1-2]", "503|b|NODE_FAIL|0:0|x2"],
            "DataloaderKilled",
        ),
        (
            [
                *STEPS,
                "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
                "502|b|CANCELLED by 1204|0:0|g[1-2]",
            ],
            "NCCLTimeoutError",
        ),
    ],
)
def test_a_row_explains_no_failure_that_has_a_cause_of_its_own(
    tmp_path: Path, lines: list[str], failure_class: str
) -> None:
    assert verdict_on(tmp_path, lines).failure_class == failure_class


def test_what_ranks_meet_when_the_whole_job_is_cancelled_comes_of_it(tmp_path: Path) -> None:
    cancelled = "slurmstepd: error: *** JOB 502 ON g1 CANCELLED AT 2025-08-06T11:43:55 ***"
    after = ["[rank3]: BrokenPipeError: [Errno 32] Broken pipe", "srun: error: g1: task 0: Killed"]
    assert verdict_on(tmp_path, [*STEPS, cancelled, *after]).failure_class == "SlurmCancelled"
    assert verdict_on(tmp_path, [*STEPS, *FAULT, cancelled, *after]).failure_class == "KeyError"
