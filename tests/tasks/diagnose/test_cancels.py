"""What makes a rank leave when its peers only miss it: an interrupt, a taken port, an error of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.records import Verdict
from configs.rundir import AttemptDir
from tasks.diagnose.diagnose import diagnose_attempt, diagnose_files
from tests.tasks.diagnose.torchrun_jobs import failed_record

PEER = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:40623.\n"
INTERRUPT = "Traceback (most recent call last):\n  File 'a.py', line 1\nKeyboardInterrupt\n"
PORT = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: 40723, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
STEPS = "step 1 loss: 2.0\n"


def verdict_on(folder: Path, *ranks: str) -> Verdict:
    for rank, text in enumerate(ranks):
        lines = "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())
        (folder / f"rank_{rank:05d}.log").write_text(STEPS + lines)
    return diagnose_files(sorted(folder.glob("rank_*.log")))


@pytest.mark.parametrize("first", [INTERRUPT, PEER])
def test_a_rank_that_was_interrupted_is_what_its_peers_miss(tmp_path: Path, first: str) -> None:
    other = PEER if first == INTERRUPT else INTERRUPT
    verdict = verdict_on(tmp_path, first, other, PEER)
    assert (verdict.failure_class, verdict.action) == ("SlurmCancelled", "none")
    assert verdict.root_cause_text.endswith("KeyboardInterrupt")


def test_a_job_that_lost_a_peer_before_it_was_interrupted_was_not_ended_on_purpose(
    tmp_path: Path,
) -> None:
    verdict = verdict_on(tmp_path, PEER + INTERRUPT, PEER)
    assert (verdict.failure_class, verdict.action) == ("NCCLRemoteError", "restart_same_nodes")


def test_an_interrupt_is_no_cause_of_a_time_out(tmp_path: Path) -> None:
    late = "RuntimeError: [/x/unbound_buffer.cc:81] Timed out waiting 8000ms for recv operation\n"
    assert verdict_on(tmp_path, late, INTERRUPT).failure_class == "NCCLTimeoutError"


def test_a_port_that_is_taken_is_the_cause_whoever_misses_the_rank(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, PEER, PORT)
    assert (verdict.failure_class, verdict.action) == ("NetworkError", "fix_by_user")
    assert verdict.faulty_rank == 1


def test_one_address_of_several_that_cannot_be_used_is_no_cause(tmp_path: Path) -> None:
    warned = (
        "[W socket.cpp:663] [c10d] The server socket has failed to bind to [::]:29500 (errno: 97)\n"
    )
    verdict = verdict_on(tmp_path, warned + STEPS + STEPS + STEPS + PEER, STEPS)
    assert verdict.failure_class == "NCCLRemoteError"


@pytest.mark.parametrize(
    ("after", "failure_class"), [("", "Unknown"), (STEPS * 4, "NCCLRemoteError")]
)
def test_the_last_word_of_the_rank_that_is_missed_is_quoted(
    tmp_path: Path, after: str, failure_class: str
) -> None:
    attempt = AttemptDir(tmp_path, 1)
    attempt.path.mkdir(exist_ok=True)
    attempt.rank_log(0).write_text(STEPS + f"[rank0]: {PEER}")
    attempt.rank_log(1).write_text("[sim] FATAL mesh partition 3 has no cells\n" + after)
    verdict = diagnose_attempt(attempt, failed_record())
    assert verdict.failure_class == failure_class
    assert ("mesh partition" in verdict.root_cause_text) is (failure_class == "Unknown")
    assert verdict.action in ("resubmit_later", "restart_same_nodes")


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("error: this node has no network interface 'ib7' with an IPv4 address\n", "ArgumentError"),
        ("the licence broker said no\n", "Unknown"),
    ],
)
def test_tasks_that_srun_ends_for_one_that_failed_say_nothing(
    tmp_path: Path, first: str, expected: str
) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        f"{first}srun: error: node1: task 0: Exited with exit code 1\n"
        "srun: Terminating StepId=45.0\n"
        "slurmstepd: error: *** STEP 45.0 ON node1 CANCELLED AT 2026-12-01T17:40:00 ***\n"
        "srun: error: node2: task 1: Killed\n"
    )
    assert diagnose_files([log]).failure_class == expected


@pytest.mark.parametrize(
    ("job_at", "expected"), [("17:40:00", "SlurmCancelled"), ("17:52:09", "ConnectionError")]
)
def test_a_step_that_is_cancelled_with_its_job_is_no_cause_of_its_own(
    tmp_path: Path, job_at: str, expected: str
) -> None:
    """A job that is cancelled minutes after its step had failed is cleared away by somebody."""
    log = tmp_path / "job.log"
    log.write_text(
        "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.\n"
        "slurmstepd: error: *** STEP 45.0 ON node1 CANCELLED AT 2026-12-01T17:40:00 ***\n"
        "[rank1]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
        f"slurmstepd: error: *** JOB 45 ON node1 CANCELLED AT 2026-12-01T{job_at} ***\n"
    )
    assert diagnose_files([log]).failure_class == expected
