"""Logs of several starts of a job: the end of an earlier one explains nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on

TIME_LIMIT = (
    "slurmstepd: error: *** JOB 71 ON g4 CANCELLED AT 2025-03-02T12:00:00 DUE TO TIME LIMIT ***"
)
PREEMPTED = (
    "slurmstepd: error: *** JOB 71 ON g4 CANCELLED AT 2025-03-02T12:00:00 DUE TO PREEMPTION ***"
)
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=66.0."
NODE_FAILED = "srun: error: Node failure on g4"
STEPS = [f"step {n} | loss {3 - n / 100:.3f} | lr 1e-4" for n in range(30)]
FAULT = [
    "Traceback (most recent call last):",
    '  File "/work/train.py", line 3, in step',
    "KeyError: 'labels'",
]


@pytest.mark.parametrize(
    "before",
    [
        [TIME_LIMIT, "+ srun -n 16 python -u train.py"],
        [PREEMPTED, "$ torchrun --nproc-per-node 8 train.py"],
        [PREEMPTED, "numpy==1.26.4", "torch==2.7.1+cu126"],
        [TIME_LIMIT, "  bf16 .......................... True"],
        [TIME_LIMIT, "wandb: Tracking run with wandb version 0.19.6", *STEPS],
        [NODE_FAILED, "[2025-03-02 12:09:12] Loading the corpus index"],
        ["=== launch 1", NODE_FAILED, "=== launch 2 of 4, g4 replaced by g9"],
        [f"Run 1: {NODE_FAILED}", "Run 2: g4 left out"],
        [f"# 1st submission (3 h): {TIME_LIMIT}", "# 2nd submission (12 h)"],
        [f"history: link seven stopped with {TIME_LIMIT}", *STEPS],
        [">>> try 1 died: CUDA out of memory", ">>> try 2, micro batch 2"],
        [
            "NVRM: Xid (PCI:0000:9d:00): 79, GPU has fallen off the bus.",
            "[rl] run 1 ended (exit 1)",
            "[rl] run 2: g5 g6",
        ],
        [f"(prior job 70: {PREEMPTED})"],
        ["--- first go:", KILLED, "--- second go, more memory:"],
        [f"wrapper: child died ({KILLED}), starting it again"],
        [KILLED, "attempt 2/3"],
        [
            *STEPS,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "slurmctld: JobId=61 requeued by epilog (count 1)",
            "=== attempt 2 (requeue count 1): user edited ds.json ===",
        ],
        [
            *STEPS,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "Job 61 was requeued",
            "loading the corpus",
        ],
        [
            *STEPS,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "##### RESTART 1 #####",
        ],
        [
            *STEPS,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "[supervisor] child exited with 1, restarting in 10 s (2/3)",
        ],
        [
            *STEPS,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "---- run 2, batch halved ----",
        ],
        [TIME_LIMIT, "job 72 picks up from step 1200"],
        [PREEMPTED, "2025-03-02 12:40:11 INFO resuming from /ckpt/step-1200"],
        [
            *STEPS,
            NODE_FAILED,
            "srun: error: g4: task 1: Exited with exit code 1",
            "Restarting (2/3) without g4",
        ],
    ],
)
def test_what_ended_an_earlier_start_is_past(tmp_path: Path, before: list[str]) -> None:
    verdict = verdict_on(
        tmp_path, [*before, *FAULT, "srun: error: g5: task 0: Exited with exit code 1"]
    )
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", len(before) + 3)


@pytest.mark.parametrize(
    ("after", "failure_class"),
    [
        ([TIME_LIMIT, *FAULT[:2], "KeyboardInterrupt"], "SlurmTimeLimit"),
        ([TIME_LIMIT, "+ sacct -j 71", "+ rc=1", *FAULT], "SlurmTimeLimit"),
        ([f"job 71 of chain c9 stopped: {TIME_LIMIT}", *FAULT], "SlurmTimeLimit"),
        ([NODE_FAILED, "[controller] attempt 2 ended (exit 1)", *FAULT], "NodeFailure"),
        ([NODE_FAILED, "attempt 3 of 3 follows"], "NodeFailure"),
        ([KILLED, *FAULT], "CgroupOOM"),
        (
            [PREEMPTED, "Requeued: starting again later", *FAULT[:2], "KeyboardInterrupt"],
            "SlurmPreempted",
        ),
        (
            [
                TIME_LIMIT,
                "loading of the next shard was under way",
                "[rank3]: ncclRemoteError: A call failed",
            ],
            "SlurmTimeLimit",
        ),
        (
            [
                NODE_FAILED,
                "[rank9]: DistBackendError: NCCL error in: NCCLUtils.cpp:94, remote process exited, NCCL version 2.26.2",
            ],
            "NodeFailure",
        ),
        (
            [
                "RuntimeError: CUDA error: an illegal memory access was encountered",
                "=== attempt 2 of 3: upload of the traces",
                *FAULT,
            ],
            "CUDAError",
        ),
        (
            [
                "RuntimeError: CUDA error: an illegal memory access was encountered",
                "attempt 2: upload of the traces",
                *FAULT,
            ],
            "CUDAError",
        ),
        (
            [NODE_FAILED, "slurmctld: JobId=61 requeued", *FAULT[:2], "KeyboardInterrupt"],
            "NodeFailure",
        ),
        (
            ["RuntimeError: CUDA error: x", "env worker 3 died, restarting it", *FAULT],
            "CUDAError",
        ),
        (
            ["RuntimeError: CUDA error: x", "[supervisor] job failed after 3 restarts", *FAULT],
            "CUDAError",
        ),
        (["upload attempt 1 of 3 failed", "upload attempt 2 ok", NODE_FAILED], "NodeFailure"),
    ],
)
def test_what_follows_the_end_of_the_last_start_is_no_start(
    tmp_path: Path, after: list[str], failure_class: str
) -> None:
    assert verdict_on(tmp_path, [*STEPS, *after]).failure_class == failure_class


def test_what_torchrun_said_of_an_earlier_start_is_past(tmp_path: Path) -> None:
    died = "E0714 09:30:00.4 81 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -11) local_rank: 2 (pid: 877) of binary: python"
    verdict = verdict_on(
        tmp_path, [*STEPS, died, "== attempt 1 ended", "== attempt 2", *STEPS, *FAULT]
    )
    assert verdict.failure_class == "KeyError"
