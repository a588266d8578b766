"""What the record and the events say goes before the logs; missing and odd files are no obstacle."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.events import CheckpointEvent, EndEvent
from configs.files import append_json_line
from configs.rundir import AttemptDir
from tasks.diagnose.diagnose import diagnose_attempt, diagnose_files
from tests.tasks.diagnose.torchrun_jobs import failed_record

_KEY_ERROR = "Traceback (most recent call last):\n  File 'a.py', line 1\nKeyError: 'lr'\n"
_TORCHRUN = """\
W1201 03:05:08.838000 70 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {closed} closing signal SIGTERM
E1201 03:05:08.856000 70 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 72) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  host      : n2
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 71)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  host      : n2
  rank      : 9 (local_rank: 1)
  exitcode  : {code} (pid: 72)
"""


def _attempt(path: Path, *, launcher: str = "", **ranks: str) -> AttemptDir:
    attempt = AttemptDir(path, 1)
    attempt.job_dir.mkdir(parents=True)
    (attempt.job_dir / "launcher.log").write_text(launcher)
    for name, text in ranks.items():
        attempt.rank_log(int(name.removeprefix("rank"))).write_text(text)
    return attempt


def test_a_completed_attempt_has_no_failure_whatever_its_logs_say(tmp_path: Path) -> None:
    attempt = _attempt(tmp_path, rank0=_KEY_ERROR)
    verdict = diagnose_attempt(attempt, failed_record(outcome="completed", reason=""))
    assert (verdict.failure_class, verdict.category, verdict.action) == (
        "NoFailure",
        "none",
        "none",
    )


@pytest.mark.parametrize(
    ("reason", "failure_class", "action"),
    [
        ("TIMEOUT time limit of 600 s", "SlurmTimeLimit", "resubmit_later"),
        ("PREEMPTED", "SlurmPreempted", "resubmit_later"),
        ("OUT_OF_MEMORY", "CgroupOOM", "fix_by_user"),
        ("NODE_FAIL supervisor (pid 7) is gone", "NodeFailure", "restart_exclude_node"),
        (
            "NODE_FAIL the job could not be started: n1 was drained",
            "NodeFailure",
            "restart_exclude_node",
        ),
        ("FAILED DependencyNeverSatisfied: a job has failed", "ArgumentError", "fix_by_user"),
        ("FAILED NeverStarts: QOSMaxNodePerJobLimit: too much", "ArgumentError", "fix_by_user"),
        ("FAILED NothingSeen: put it on storage", "FileNotFoundError", "fix_by_user"),
        ("CANCELLED cancelled", "SlurmCancelled", "none"),
    ],
)
def test_the_launchers_word_is_final(
    tmp_path: Path, reason: str, failure_class: str, action: str
) -> None:
    verdict = diagnose_attempt(_attempt(tmp_path, rank0="step 1\n"), failed_record(reason=reason))
    assert (verdict.failure_class, verdict.action) == (failure_class, action)
    assert verdict.method == "launcher"
    assert verdict.evidence[0] == f"launcher: {reason}"


def test_a_cancelled_attempt_was_ended_by_a_person(tmp_path: Path) -> None:
    record = failed_record(outcome="cancelled", reason="interrupted from the keyboard")
    assert diagnose_attempt(_attempt(tmp_path), record).failure_class == "SlurmCancelled"


def test_a_hang_is_the_monitors_verdict_and_quotes_what_else_was_seen(tmp_path: Path) -> None:
    record = failed_record(hung=True, reason="no sign of life for 9 s", signal=15)
    verdict = diagnose_attempt(_attempt(tmp_path, rank0="step 1\n", rank1=_KEY_ERROR), record)
    assert (verdict.failure_class, verdict.action) == ("Hang", "restart_same_nodes")
    assert verdict.faulty_node == "box"
    assert verdict.evidence[1] == "rank_00001.log:3: KeyError: 'lr'"


def test_no_logs_at_all_is_unknown_and_never_a_guess(tmp_path: Path) -> None:
    verdict = diagnose_attempt(AttemptDir(tmp_path / "none", 1), failed_record())
    assert (verdict.failure_class, verdict.action) == ("Unknown", "resubmit_later")
    assert verdict.root_cause_line is None


def test_a_job_that_was_killed_whole_is_told_by_its_signal(tmp_path: Path) -> None:
    verdict = diagnose_attempt(_attempt(tmp_path, rank0="step 1\n"), failed_record(signal=9))
    assert (verdict.failure_class, verdict.method) == ("NodeFailure", "job_killed")
    assert "SIGKILL" in verdict.evidence[0]


def test_ranks_that_torchrun_ended_are_not_the_cause(tmp_path: Path) -> None:
    launcher = _TORCHRUN.format(closed=71, code=-9)
    verdict = diagnose_attempt(
        _attempt(tmp_path, launcher=launcher), failed_record(nodes=["n1", "n2"])
    )
    assert (verdict.method, verdict.faulty_rank, verdict.faulty_node) == ("rank_killed", 9, "n2")
    assert verdict.root_cause_line == 2


def test_a_peer_that_torchrun_saw_die_first_does_not_hide_the_killed_rank(tmp_path: Path) -> None:
    launcher = (
        "Failures:\n  host : n2\n  rank      : 9 (local_rank: 1)\n  exitcode  : -9 (pid: 72)\n"
        "Root Cause (first observed failure):\n"
        "  rank      : 8 (local_rank: 0)\n  exitcode  : 1 (pid: 71)\n"
    )
    peer = "[rank8]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:5] Connection reset by peer\n"
    attempt = _attempt(tmp_path, launcher=launcher, rank8=peer, rank9="step 1\n")
    verdict = diagnose_attempt(attempt, failed_record())
    assert (verdict.method, verdict.faulty_rank) == ("rank_killed", 9)


def test_a_job_told_to_stop_from_outside_blames_no_rank(tmp_path: Path) -> None:
    launcher = (
        "W1 agent/server/api.py] Received Signals.SIGTERM death signal, shutting down workers\n"
    )
    peer = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]:5\n"
    verdict = diagnose_attempt(
        _attempt(tmp_path, launcher=launcher, rank0=peer, rank1="step 1\n"), failed_record()
    )
    assert (verdict.failure_class, verdict.method) == ("Unknown", "job_signalled")
    assert verdict.faulty_rank is None


def test_when_several_ranks_fail_the_first_to_die_is_quoted(tmp_path: Path) -> None:
    launcher = _TORCHRUN.format(closed=70, code=1)
    other = _KEY_ERROR.replace("KeyError: 'lr'", "ValueError: other")
    attempt = _attempt(tmp_path, launcher=launcher, rank8=other, rank9=_KEY_ERROR)
    assert diagnose_attempt(attempt, failed_record()).faulty_rank == 9


def test_a_crash_at_shutdown_after_an_exception_is_no_crash(tmp_path: Path) -> None:
    launcher = _TORCHRUN.format(closed=71, code=-11)
    attempt = _attempt(tmp_path, launcher=launcher, rank8="step 1\n", rank9=_KEY_ERROR)
    verdict = diagnose_attempt(attempt, failed_record())
    assert (verdict.failure_class, verdict.faulty_rank) == ("KeyError", 9)


def test_a_rank_that_exits_without_a_word_is_unknown_but_named(tmp_path: Path) -> None:
    launcher = _TORCHRUN.format(closed=71, code=3)
    peer = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]:5\n"
    attempt = _attempt(tmp_path, launcher=launcher, rank8=peer, rank9="step 1\n")
    verdict = diagnose_attempt(attempt, failed_record())
    assert (verdict.failure_class, verdict.method) == ("Unknown", "rank_exited")
    assert (verdict.faulty_rank, verdict.action) == (9, "resubmit_later")
    assert "exited with code 3" in verdict.evidence[1]


def test_an_abort_by_the_watchdog_is_a_time_out(tmp_path: Path) -> None:
    launcher = _TORCHRUN.format(closed=71, code=-6)
    words = (
        "[rank9]:[E1] [Rank 9] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)\n"
    )
    attempt = _attempt(tmp_path, launcher=launcher, rank8="step 1\n", rank9=words)
    verdict = diagnose_attempt(attempt, failed_record())
    assert (verdict.failure_class, verdict.faulty_rank) == ("NCCLTimeoutError", 8)


@pytest.mark.parametrize("given_up", [True, False])
def test_a_save_that_was_given_up_is_no_cause(tmp_path: Path, given_up: bool) -> None:
    error = "OSError: [Errno 28] No space left on device"
    log = (
        "2026-01-01 10:00:00,000 WARNING save: this rank could not write its part\n"
        "Traceback (most recent call last):\n  File 'a.py', line 1\nValueError: bad file\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        f"Traceback (most recent call last):\n  File 'a.py', line 2\n{error}\n"
    )
    attempt = _attempt(tmp_path, launcher=_TORCHRUN.format(closed=71, code=-9), rank9=log)
    if given_up:
        save = CheckpointEvent(
            time=10.0, step=5, outcome="failed", duration_s=1.0, error=f"rank 9: {error}"
        )
        append_json_line(attempt.events_path, save.model_dump())
    verdict = diagnose_attempt(attempt, failed_record())
    assert verdict.failure_class == ("NodeFailure" if given_up else "ValueError")


def test_what_hardware_says_outranks_the_framework(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "[rank3]: RuntimeError: CUDA error: unspecified launch failure\n"
        "gpu-7 kernel: [1.0] NVRM: Xid (PCI:0000:ab:00): 94, pid=3, Contained ECC error\n"
    )
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.faulty_node) == ("ECCError", "gpu-7")
    assert verdict.action == "restart_exclude_node"


def test_errors_that_training_went_on_after_are_no_cause(tmp_path: Path) -> None:
    steps = "".join(f"step {n} loss: {2 - n / 100}\n" for n in range(30))
    log = tmp_path / "job.log"
    log.write_text(_KEY_ERROR + steps + "NameError: name 'y' is not defined\n")
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.root_cause_line) == ("NameError", 34)


def test_a_loss_that_jumps_and_stays_is_a_spike_and_one_that_returns_is_not(tmp_path: Path) -> None:
    calm = [f"step {n} loss: {2.0 + (n % 5) / 100}" for n in range(40)]
    high = [f"step {n} loss: {6.0 + n / 100}" for n in range(40, 50)]
    spiked, back = tmp_path / "spiked.log", tmp_path / "back.log"
    spiked.write_text("\n".join(calm + high))
    back.write_text("\n".join(calm + high + calm))
    verdict = diagnose_files([spiked])
    assert (verdict.failure_class, verdict.root_cause_line) == ("LossSpike", 41)
    assert verdict.action == "rollback_skip_data"
    assert diagnose_files([back]).failure_class == "Unknown"


def test_a_run_that_ended_well_has_no_failure_despite_its_teardown(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "step 9 loss: 2.0\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.\n"
        "[2025-03-02 01:27:21] job 12 finished, exit code 0\n"
    )
    assert diagnose_files([log]).failure_class == "NoFailure"


def test_binary_rubbish_is_read_to_the_end(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(bytes(range(256)) * 4000 + b"\nKeyError: 'x'\n")
    assert diagnose_files([log]).failure_class == "KeyError"


@pytest.mark.parametrize(("ended", "failure_class"), [(False, "NodeFailure"), (True, "OSError")])
def test_a_failed_save_is_the_cause_only_of_a_job_at_its_end(
    tmp_path: Path, ended: bool, failure_class: str
) -> None:
    error = "rank 1: OSError: [Errno 28] No space left on device"
    said = f"ERROR tasks.train.loop: checkpoint of step 3 failed, training goes on: {error}\n"
    report = _TORCHRUN.format(closed=71, code=1 if ended else -9)
    attempt = _attempt(tmp_path, launcher=report, rank9=said)
    save = CheckpointEvent(time=1.0, step=3, outcome="failed", duration_s=1.0, error=error)
    append_json_line(attempt.events_path, save.model_dump())
    if ended:
        append_json_line(attempt.events_path, EndEvent(time=2.0, step=3).model_dump())
    assert diagnose_attempt(attempt, failed_record()).failure_class == failure_class


def test_a_job_ended_by_a_signal_without_a_name(tmp_path: Path) -> None:
    record = failed_record(signal=40, reason="FAILED")
    verdict = diagnose_attempt(_attempt(tmp_path), record)
    assert verdict.failure_class == "NodeFailure"
    assert "signal 40" in verdict.evidence[0]
