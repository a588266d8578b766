"""Errors whose own lines, neighbours or kind show that they are no cause: ways round them, helper threads, aborts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on
from tests.tasks.diagnose.test_errors_set_aside import STEPS, TRACEBACK


@pytest.mark.parametrize(
    "said",
    [
        "Using the latest cached version of the dataset since it couldn't be found on the Hub (ConnectionError: "
        "Couldn't reach 'a/b' on the Hub (ReadTimeout))",
        "FileNotFoundError: [Errno 2] no /data/index.npy, rebuilt on the fly (non-fatal)",
        "FileNotFoundError: [Errno 2] 未找到 /data/index.npy, 将重新构建索引 (非致命)",
    ],
)
def test_an_error_whose_line_says_that_there_is_a_way_round_is_set_aside(
    tmp_path: Path, said: str
) -> None:
    assert verdict_on(tmp_path, [said, *TRACEBACK]).failure_class == "KeyError"


def test_a_missing_module_that_something_else_is_used_for_is_set_aside(tmp_path: Path) -> None:
    missing = [*TRACEBACK[:2], "ModuleNotFoundError: No module named 'amp_C'"]
    without = "WARNING: fused kernels unavailable, using the torch implementation"
    own = "TypeError: f() got an unexpected keyword argument 'x'"
    lines = [*missing, without, "[rank1]: " + TRACEBACK[0], "[rank1]: " + own]
    assert verdict_on(tmp_path, lines).failure_class == "TypeError"


def test_a_librarys_thread_that_tells_no_traceback_is_no_cause(tmp_path: Path) -> None:
    thread = [
        "[rank10]: Exception in thread Thread-3 (_pin_memory_loop):",
        "[rank10]: ConnectionResetError: [Errno 104] Connection reset by peer",
    ]
    gone = [
        "[rank10]: Traceback (most recent call last):",
        "[rank10]: RuntimeError: DataLoader worker (pid(s) 411948) exited unexpectedly",
    ]
    assert verdict_on(tmp_path, [*STEPS, *thread, *gone]).failure_class == "DataloaderKilled"
    alone = verdict_on(tmp_path, [*STEPS, "Exception in thread sender:", thread[1]])
    assert alone.failure_class == "ConnectionError"


def test_aborts_that_torchrun_tells_of_no_rank_come_of_time_outs(tmp_path: Path) -> None:
    watchdog = (
        "[rank{0}]:[E531 00:00:12.08 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800042 milliseconds"
    )
    failed = (
        "E0531 00:00:14.32 29 /x/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) "
        "local_rank: 0 (pid: 296868) of binary: /opt/python"
    )
    timed_out = [watchdog.format(rank) for rank in range(4)]
    verdict = verdict_on(tmp_path, [*STEPS, *timed_out, failed])
    assert (verdict.failure_class, verdict.root_cause_line) == ("NCCLTimeoutError", len(STEPS) + 1)
    assert verdict_on(tmp_path, [*STEPS, failed]).failure_class == "RuntimeError"


def test_a_loss_behind_a_colon_is_read(tmp_path: Path) -> None:
    report = "levanter - INFO :: Progress on:train {0}it/50kit rate:2.4s/it elapsed:1.6h postfix:loss={1}"
    lines = [report.format(n, 2.5 if n < 40 else 7.5) for n in range(60)]
    verdict = verdict_on(tmp_path, lines)
    assert (verdict.failure_class, verdict.root_cause_line) == ("LossSpike", 41)
    others = [line.replace("postfix:", "eval:") for line in lines]
    assert verdict_on(tmp_path, others).failure_class != "LossSpike"
