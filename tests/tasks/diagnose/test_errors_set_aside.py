"""Errors that the lines after them seem to take back, and those that only come of a program's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.diagnose.diagnose import diagnose_files
from tests.tasks.diagnose.one_log import verdict_on

STEPS = [f"2025-03-01 10:00:{n:02d} INFO step {n} loss 2.31" for n in range(20)]
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/work/train.py", line 3, in step',
    "KeyError: 'labels'",
]


@pytest.mark.parametrize(
    "after",
    [
        [
            "Exception ignored in: <function Trainer.__del__ at 0x7f3a>",
            *TRACEBACK[:2],
            "TypeError: x",
        ],
        ["Exception ignored in atexit callback: <function f at 0x7f>", "OSError: [Errno 9] closed"],
        ["INFO caught exception, shutting down", "INFO skipping final evaluation"],
        ["wandb: WARNING Disabling online sync, falling back to offline"],
        ["INFO skipping the rest of the epoch"],
    ],
)
def test_words_at_a_programs_end_take_no_error_back(tmp_path: Path, after: list[str]) -> None:
    verdict = verdict_on(tmp_path, [*STEPS, *TRACEBACK, *after])
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", len(STEPS) + 3)


def test_an_error_that_training_went_on_after_is_no_cause(tmp_path: Path) -> None:
    lines = [*STEPS, *TRACEBACK, "INFO skipping the record", *STEPS, "Training finished"]
    assert verdict_on(tmp_path, lines).failure_class == "NoFailure"


def test_a_librarys_thread_may_fail_when_training_has_ended(tmp_path: Path) -> None:
    left_over = [
        "Exception in thread QueueFeederThread:",
        TRACEBACK[0],
        "OSError: handle is closed",
    ]
    ended = verdict_on(tmp_path, [*STEPS, "Training finished", *left_over])
    assert ended.failure_class == "NoFailure"
    own = ["Exception in thread checkpoint-writer:", *TRACEBACK]
    assert verdict_on(tmp_path, [*STEPS, "Training finished", *own]).failure_class == "KeyError"


@pytest.mark.parametrize(
    ("after", "failure_class"),
    [
        ([], "CgroupOOM"),
        (
            ["slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-03-01T10:01:00 ***"],
            "SlurmCancelled",
        ),
    ],
)
def test_a_kill_is_the_memory_killers_unless_the_job_was_cancelled(
    tmp_path: Path, after: list[str], failure_class: str
) -> None:
    killed = "/var/spool/slurmd/job7/slurm_script: line 31: 4123 Killed       python train.py"
    assert verdict_on(tmp_path, [*STEPS, killed, *after]).failure_class == failure_class


@pytest.mark.parametrize(
    ("line", "failure_class", "node"),
    [
        ("Node is not ready: node ip-10-0-3-7.ec2.internal, kubelet stopped", "NodeFailure", "ip-10-0-3-7.ec2.internal"),
        ("(raylet) The node with node id: 9ab and address: 10.4.2.19 and node name: a has been marked dead", "NodeFailure", "10.4.2.19"),
        ("Mar  1 10:00:20 cn31 kernel: EDAC MC3: 1 UE memory read error on DIMM#0", "ECCError", "cn31"),
        ("Mar  1 10:00:20 cn31 kernel: mce: Killing python:2 due to hardware memory corruption fault", "ECCError", "cn31"),
        ("[dcgm] cn31: GPU 3 NvLink link 4 is currently down", "NVLinkError", "cn31"),
        ("spot instance i-0abc will be terminated in 2 minutes", "SlurmPreempted", None),
        ("dial tcp: lookup vault.intern on 10.0.0.10:53: no such host", "ConnectionError", None),
        ("bash: ./lauf.sh: Keine Berechtigung", "PermissionError", None),
        ("bash: /opt/début.sh: Aucun fichier ou dossier de ce type", "FileNotFoundError", None),
        ("Pod was active on the node longer than the specified deadline", "SlurmTimeLimit", None),
        ("RuntimeError: No executable batch size found, reached zero.", "OutOfMemoryError", None),
    ],
)  # fmt: skip
def test_words_of_other_systems(
    tmp_path: Path, line: str, failure_class: str, node: str | None
) -> None:
    verdict = verdict_on(tmp_path, [*STEPS, line])
    assert (verdict.failure_class, verdict.faulty_node) == (failure_class, node)


@pytest.mark.parametrize("said", ["lrz-n14=10.31.4.26", "10.31.4.26 -> lrz-n14"])
def test_an_address_gets_the_name_that_a_list_gives_it(tmp_path: Path, said: str) -> None:
    warning = "lrz-n13:9:98 [0] socket.cc:484 NCCL WARN Connect to 10.31.4.26<5341> failed : No route to host"
    verdict = verdict_on(tmp_path, ["rank0=10.31.4.26", said, *STEPS, warning])
    assert (verdict.failure_class, verdict.faulty_node) == ("NetworkError", "lrz-n14")


@pytest.mark.parametrize("last", ["", " last_output=unknown", " last_output=-"])
def test_a_capture_need_not_tell_when_the_last_output_was(tmp_path: Path, last: str) -> None:
    capture = f"[shipper] snapshot 2025-03-01T{{}} job=1 state=RUNNING{last}"
    assert verdict_on(tmp_path, [*STEPS, capture.format("11:30:00")]).failure_class == "Hang"
    assert verdict_on(tmp_path, [*STEPS, capture.format("10:00:40")]).failure_class == "NoFailure"


def test_a_traceback_that_stands_only_in_torchruns_report_is_read(tmp_path: Path) -> None:
    report = [
        "E0301 10:00:21.1 41 torch/distributed/elastic/multiprocessing/api.py:869] "
        "failed (exitcode: 1) local_rank: 2 (pid: 411) of binary: python",
        "Root Cause (first observed failure):",
        "  rank      : 2 (local_rank: 2)",
        "  exitcode  : 1 (pid: 411)",
        "  traceback : Traceback (most recent call last):",
        '    File "/work/train.py", line 9, in main',
        "      x = a + None",
        "  TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'",
    ]
    verdict = verdict_on(tmp_path, [*STEPS, *report])
    assert (verdict.failure_class, verdict.root_cause_line) == ("TypeError", len(STEPS) + 8)


def test_an_error_that_stands_only_in_torchruns_error_record_is_read(tmp_path: Path) -> None:
    record = "E0301 10:00:21.1 41 torch/distributed/elastic/multiprocessing/errors/error_handler.py:141] "
    lines = [record + '"message": {', record + '"message": "KeyError: \'position_ids\'",']
    assert verdict_on(tmp_path, [*STEPS, *lines]).failure_class == "KeyError"


def test_a_count_of_no_errors_is_not_suspicious(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, [*STEPS, "eval error rate: 0.1", "errors: 0"])
    assert (verdict.failure_class, verdict.root_cause_line) == ("Unknown", None)


@pytest.mark.parametrize(
    "parting",
    [
        [f"wandb:   metric_{n} 0.{n}" for n in range(60)],
        [f"n1:31:{n} [3] NCCL INFO comm 0x5 rank 3 nranks 8 - Abort COMPLETE" for n in range(60)],
        [f"| segment {n} | 200 MiB | 220 MiB |" for n in range(60)],
        [f"INFO timer {n}: 1.2 ms" for n in range(20)],
    ],
)
def test_what_a_dying_process_prints_is_no_sign_of_life(tmp_path: Path, parting: list[str]) -> None:
    lost = (
        "[rank0]:[E301 10:10:21.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600001 milliseconds"
    )
    own = [f"[rank3]: {line}" for line in [*TRACEBACK, *parting]]
    assert verdict_on(tmp_path, [*STEPS, *own, lost]).failure_class == "KeyError"


def test_a_rank_that_writes_on_for_long_has_survived_its_error(tmp_path: Path) -> None:
    own = [f"[rank3]: {line}" for line in [*TRACEBACK, *(f"read shard {n}" for n in range(60))]]
    lost = "[rank0]: ncclRemoteError: A call failed possibly due to a network error"
    assert verdict_on(tmp_path, [*STEPS, *own, lost]).failure_class == "NCCLRemoteError"


def test_reports_out_of_a_buffer_do_not_hide_an_error_before_them(tmp_path: Path) -> None:
    failed = "srun: error: n1: task 0: Exited with exit code 1"
    shown = verdict_on(tmp_path, [*STEPS, *TRACEBACK, *STEPS, failed])
    assert (shown.failure_class, shown.root_cause_line) == ("KeyError", len(STEPS) + 3)
    assert verdict_on(tmp_path, [*STEPS, *TRACEBACK, *STEPS * 9, failed]).failure_class == "Unknown"


def test_a_run_summary_reports_no_steps(tmp_path: Path) -> None:
    summary = [f"wandb:   {name}/global_step 512" for name in ("train", "val", "trainer", "test")]
    assert verdict_on(tmp_path, [*STEPS, *TRACEBACK, *summary]).failure_class == "KeyError"


CANCEL = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-03-01T10:00:20 ***"
LOST = "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"


@pytest.mark.parametrize(
    ("lines", "failure_class"),
    [
        ([CANCEL, LOST], "SlurmCancelled"),
        ([CANCEL, "RuntimeError: DataLoader worker (pid 4) is killed by signal: Terminated."], "SlurmCancelled"),
        ([LOST, CANCEL], "NCCLRemoteError"),
        (["srun: error: n1: task 3: Exited with exit code 1", CANCEL, LOST], "NCCLRemoteError"),
    ],
)  # fmt: skip
def test_what_ranks_say_after_a_cancel_comes_of_it(
    tmp_path: Path, lines: list[str], failure_class: str
) -> None:
    assert verdict_on(tmp_path, [*STEPS, *lines]).failure_class == failure_class


NOISE = [f"n1:77:{n} [0] NCCL INFO Channel {n:02d}/0 : 0[0] -> 8[0] via NET/IB" for n in range(40)]
MENTIONED = "[tb] PermissionError: [Errno 13] Permission denied: '/tb', events go to /tmp"


def test_a_mentioned_exception_is_the_cause_only_where_nothing_else_is(tmp_path: Path) -> None:
    cancelled = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-03-01T10:01:00 ***"
    later = verdict_on(tmp_path, [*STEPS, MENTIONED, *NOISE, *TRACEBACK])
    assert (later.failure_class, later.root_cause_line) == ("KeyError", len(STEPS) + 41 + 3)
    assert verdict_on(tmp_path, [MENTIONED, *NOISE, cancelled]).failure_class == "SlurmCancelled"
    assert verdict_on(tmp_path, [*STEPS, MENTIONED]).failure_class == "PermissionError"
    levelled = [f"ERROR {MENTIONED}", *NOISE, cancelled]
    assert verdict_on(tmp_path, levelled).failure_class == "PermissionError"


def test_training_goes_on_between_the_notice_of_the_time_limit_and_the_signal(
    tmp_path: Path,
) -> None:
    notice = (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-03-01T10:00:19 DUE TO TIME LIMIT ***"
    )
    soon = [f"2025-03-01 10:01:{n:02d} INFO step {n} loss 2.31" for n in range(30)]
    stopped = ["Main process received SIGTERM", *TRACEBACK[:2], "KeyboardInterrupt"]
    assert verdict_on(tmp_path, [*STEPS, notice, *soon, *stopped]).failure_class == "SlurmTimeLimit"
    much_later = [line.replace("10:01", "14:01") for line in soon]
    verdict = verdict_on(tmp_path, [*STEPS, notice, *much_later, *TRACEBACK])
    assert verdict.failure_class == "KeyError", "the notice was an earlier job's"


def test_structured_logs_are_read_as_others(tmp_path: Path) -> None:
    step = '{"ts": "2025-03-01T10:00:00Z", "level": "INFO", "rank": 0, "step": 5, "loss": 2.3}'
    error = (
        '{"level": "ERROR", "rank": 6, "event": "crash", "exc_type": "KeyError", "exc": "labels"}'
    )
    verdict = verdict_on(tmp_path, [step] * 9 + [error])
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 10)
    assert verdict.faulty_rank == 6


def test_a_containers_streams_are_one_stream(tmp_path: Path) -> None:
    stamp = "2025-05-14T13:25:2{}.798232065Z std{} F {}"
    streams = ["out", "err", "out"]
    lines = [stamp.format(n, streams[n], line) for n, line in enumerate(TRACEBACK)]
    verdict = verdict_on(tmp_path, lines)
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 3)


def test_a_label_of_host_and_rank_tells_the_node(tmp_path: Path) -> None:
    lines = [
        "gpu-a-117 0: step 1 loss 2.3",
        "gpu-a-118 11: RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "srun: error: gpu-a-118: task 11: Exited with exit code 1",
    ]
    verdict = verdict_on(tmp_path, lines)
    assert (verdict.faulty_rank, verdict.faulty_node) == (11, "gpu-a-118")


def test_a_log_that_only_monitors_write_on_is_a_hangs(tmp_path: Path) -> None:
    monitor = [f"2025-03-01 {hour}:30:00 gpu monitor: util 0%" for hour in range(11, 15)]
    verdict = verdict_on(tmp_path, [*STEPS, *monitor])
    assert (verdict.failure_class, verdict.method) == ("Hang", "silence")
    assert verdict_on(tmp_path, [*STEPS, monitor[0]]).failure_class == "Unknown"


@pytest.mark.parametrize("separator", [" ", " | ", ", ", ": ", "="])
def test_losses_are_read_in_plain_formats(tmp_path: Path, separator: str) -> None:
    between = separator if separator in (" ", ": ", "=") else " "
    before = separator if separator in (" | ", ", ") else " "
    losses = [2.3 + n % 3 / 10 for n in range(60)] + [9.1 + n % 3 / 10 for n in range(30)]
    lines = [f"step {n}{before}loss{between}{loss:.2f}" for n, loss in enumerate(losses)]
    verdict = verdict_on(tmp_path, lines)
    assert (verdict.failure_class, verdict.root_cause_line) == ("LossSpike", 61)


def test_torchruns_report_tells_the_rank_of_a_local_one(tmp_path: Path) -> None:
    lines = [
        *(f"[default3]:{line}" for line in TRACEBACK),
        "E0302 11:02:33.022000 22 api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 133) of binary: python",
        "Root Cause (first observed failure):",
        "  host      : n7",
        "  rank      : 59 (local_rank: 3)",
        "  exitcode  : 1 (pid: 133)",
    ]
    verdict = verdict_on(tmp_path, lines)
    assert (verdict.failure_class, verdict.faulty_rank) == ("KeyError", 59)


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("srun: error: r02n11: task 4: Bus error (core dumped)", "RuntimeError"),
        ("[node7:221] Signal: Segmentation fault (11)", "RuntimeError"),
        ("mpirun noticed that process rank 5 with PID 0 on node cn-0044 exited on signal 9 (Killed).", "CgroupOOM"),
        ("Memory access fault by GPU node-5 (Agent handle: 0x55d) on address 0x7f.", "CUDAError"),
        ("LustreError: 11-0: lfs-OST0003: operation ost_write to node 10.2.1.4@o2ib failed: rc = -107", "OSError"),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi.", "OSError"),
    ],
)  # fmt: skip
def test_ends_in_the_words_of_other_launchers(
    tmp_path: Path, line: str, failure_class: str
) -> None:
    assert verdict_on(tmp_path, [*STEPS, line]).failure_class == failure_class


def test_what_is_said_of_an_object_whose_loss_was_handled_is_set_aside(tmp_path: Path) -> None:
    steps = [f"step {at} loss 2.{at}" for at in range(20)]
    handled = "wds: pipe:aws s3 cp s3://mirror/44120.tar - : handling exception OSError, warn and continue"
    tool = "download failed: s3://mirror/44120.tar to - An error occurred (InternalError) when calling the GetObject operation"
    error = "[rank77]: botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL"
    log = tmp_path / "a.log"
    log.write_text("\n".join([*steps, handled, tool, error]))
    assert diagnose_files([log]).root_cause_line == len(steps) + 3


def test_an_optional_module_and_a_note_on_an_earlier_launch_are_no_causes(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    error = "pretrain.py: error: argument --ckpt-format: invalid choice: 'x'"
    log.write_text(
        "[env] optional: No module named 'apex' (ImportError, not needed)\n"
        "# last good launch: error: unrecognized arguments: --fp8-margin  (removed)\n" + error
    )
    assert diagnose_files([log]).root_cause_line == 3


def test_what_python_meets_before_the_program_begins_is_ignored(tmp_path: Path) -> None:
    site = ["Error in sitecustomize; set PYTHONVERBOSE for traceback:"]
    site += ["ModuleNotFoundError: No module named 'site_hooks'"]
    hydra = ["Could not override 'model.warmup_step'.", "Key 'warmup_step' is not in struct"]
    assert verdict_on(tmp_path, [*site, *hydra]).failure_class == "ArgumentError"
    assert verdict_on(tmp_path, [site[1], *hydra]).failure_class == "ImportError"
