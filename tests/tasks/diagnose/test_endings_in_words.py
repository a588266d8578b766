"""How a job ended where its launcher, pods or trainer say so in words of their own; and losses by other names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.diagnose.captures import capture_in
from tests.tasks.diagnose.one_log import verdict_on

STEPS = [f"step {n} | loss {3 - n / 100:.3f}" for n in range(20)]
TEAR_DOWN = (
    "[rank0]:[W313 05:10:02.000000000 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=61, "
    "addr=[trainer-0]:40110, remote=[trainer-0]:29500): failed to recv, got 0 bytes"
)
REMOTE = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."


@pytest.mark.parametrize(
    "end",
    [
        "main() returned 0",
        "k8s/job Completed: 2/2 pods succeeded",
        "reached max_steps=1600",
        "14m   Normal   Completed   job/pretrain   Job completed",
    ],
)
def test_a_job_that_ended_well_says_so_in_its_own_words(tmp_path: Path, end: str) -> None:
    assert verdict_on(tmp_path, [*STEPS, end, TEAR_DOWN, end]).failure_class == "NoFailure"


@pytest.mark.parametrize(
    "end",
    [
        "mpirun: 23 of 24 processes aborted (signal 6), 1 exited with code 0",
        "launcher: 3 ranks were killed, rank 0 exited with code 0",
        "slurmctld: Job_id=90 Name=s7 Ended, Run time 00:23:31, CANCELLED by uid 5512, ExitCode 0",
    ],
)
def test_one_exit_code_of_zero_among_others_is_no_success(tmp_path: Path, end: str) -> None:
    verdict = verdict_on(tmp_path, [*STEPS, REMOTE, end])
    assert verdict.failure_class == "NCCLRemoteError"


@pytest.mark.parametrize(
    "begin", ["srun: forcing job termination", "srun: sending Ctrl-C to StepId=7.0"]
)
def test_what_ranks_say_after_a_cancel_that_is_on_the_books_comes_of_it(
    tmp_path: Path, begin: str
) -> None:
    cancel = "slurmstepd: error: *** STEP 7781.0 ON mir02 CANCELLED AT 2025-03-14T15:05:01 ***"
    trace = [
        "Traceback (most recent call last):",
        "RuntimeError: Not all local ranks have completed",
    ]
    books = "sacct: 7781|CANCELLED by 4410|0:15|limit 12:00:00|elapsed 00:05:14"
    verdict = verdict_on(tmp_path, [*STEPS, begin, REMOTE, cancel, *trace, books])
    assert (verdict.failure_class, verdict.action) == ("SlurmCancelled", "none")
    assert verdict.root_cause_text == cancel
    before = verdict_on(tmp_path, [*STEPS, *trace, begin, REMOTE, cancel, books])
    assert before.failure_class == "RuntimeError"
    unbooked = verdict_on(tmp_path, [*STEPS, begin, REMOTE, cancel, *trace])
    assert unbooked.failure_class == "RuntimeError"


@pytest.mark.parametrize(
    "report",
    [
        "fsdp2> 12:19:20 | opt 5231 | ce={loss:.4f} | moe_lb=3.679",
        '{{"ts": "2025-10-02T00:29:36Z", "step": 89, "ce": {loss:.4f}, "gnorm": 0.3}}',
        "it 12 nll: {loss:.3f}",
        "update 7 lm_ce={loss:.3f} lr=1e-4",
        "12 cross_entropy={loss:.5f}",
    ],
)
def test_a_loss_by_its_other_names_that_jumps_is_a_spike(tmp_path: Path, report: str) -> None:
    losses = [2.0 + n % 3 / 100 for n in range(40)] + [6.0 + n % 4 / 10 for n in range(30)]
    verdict = verdict_on(tmp_path, [report.format(loss=loss) for loss in losses])
    assert (verdict.failure_class, verdict.root_cause_line) == ("LossSpike", 41)


@pytest.mark.parametrize("text", ["EDAC MC0: CE: 5", "ce=12", "trace: 1.25", "CE=2.50"])
def test_other_counts_are_no_loss(tmp_path: Path, text: str) -> None:
    error = ["Traceback (most recent call last):", "KeyError: 'labels'"]
    verdict = verdict_on(tmp_path, [*STEPS, *error, *[text] * 5])
    assert verdict.failure_class == "KeyError"


def test_a_run_that_gives_up_on_a_lost_loss_went_wrong_where_it_was_lost(tmp_path: Path) -> None:
    lost = ["{'loss': nan, 'epoch': 6.0}", "OVERFLOW! Skipping step. Reducing the scale"] * 8
    end = "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
    good = [f"{{'loss': {2 - n / 50:.2f}, 'epoch': 5.9}}" for n in range(20)]
    trace = [
        "Traceback (most recent call last):",
        '  File "loss_scaler.py", line 175, in update_scale',
    ]
    verdict = verdict_on(tmp_path, [*good, *lost, *trace, end])
    assert (verdict.failure_class, verdict.root_cause_line) == ("LossSpike", len(good) + 1)


def test_a_pod_that_was_running_when_its_log_was_taken_is_seen() -> None:
    seen = capture_in("agent | log capture at 2025-11-11T11:44:07Z phase=Running")
    assert seen is not None and seen.taken is not None


def test_a_person_cancels_a_job_whose_step_srun_ends_first(tmp_path: Path) -> None:
    aborted = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."
    worker = ["Traceback (most recent call last):", '  File "run.py", line 60, in <module>']
    worker += ["RuntimeError: DataLoader worker (pid(s) 8120, 8121) exited unexpectedly"]
    cancel = "slurmstepd: error: *** JOB 660012 ON g-11 CANCELLED AT 2025-10-30T13:11:43 ***"
    books = '[epilog] sacct: 660012 state "CANCELLED by 12045" elapsed 00:11:43 exit 0:15'
    ended = verdict_on(tmp_path, [*STEPS, aborted, *worker, cancel, books])
    assert (ended.failure_class, ended.action) == ("SlurmCancelled", "none")
    failed_before = verdict_on(tmp_path, [*STEPS, *worker, aborted, cancel, books])
    assert failed_before.failure_class == "DataloaderKilled"


def test_starts_that_are_counted_from_zero_are_told_apart(tmp_path: Path) -> None:
    lost = "slurmstepd: error: *** JOB 55 ON n1 CANCELLED AT 2025-06-30T00:20:11 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
    trace = [
        "Traceback (most recent call last):",
        '  File "config.py", line 4, in _batch_assertion',
    ]
    trace += ["AssertionError: Check batch related parameters. 1024 != 4 * 4 * 48"]
    again = ["== job 55 requeued, n7 drained ==", "-- attempt 1: 6 nodes", "n1: world_size = 48"]
    verdict = verdict_on(tmp_path, ["-- attempt 0: 8 nodes", *STEPS, lost, *again, *trace])
    assert (verdict.failure_class, verdict.action) == ("AssertionError", "fix_by_user")


@pytest.mark.parametrize(
    "advice",
    [
        "You can suppress this exception and fall back to eager by setting:",
        "Consider skipping this sample, or set HF_DATASETS_OFFLINE",
        "To avoid this error, please fall back to the eager mode",
    ],
)
def test_advice_behind_an_error_does_not_say_that_it_was_dealt_with(
    tmp_path: Path, advice: str
) -> None:
    trace = ["Traceback (most recent call last):", '  File "cache.py", line 103, in put']
    error = "PermissionError: [Errno 13] Permission denied: '/tmp/triton/5/VQ7'"
    verdict = verdict_on(tmp_path, [*STEPS[:3], *trace, error, advice, "    import torch._dynamo"])
    assert (verdict.failure_class, verdict.action) == ("PermissionError", "fix_by_user")
