"""The same failure in the words of other versions and programs, and behind other launchers' prefixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.diagnose.logs import LogLine, split_prefix
from tasks.diagnose.rules import default_rules
from tests.tasks.diagnose.one_log import verdict_on_text

PREFIXES = ("", "> ", "52\t", "worker-1  | ", "n31: ", "(Trainer pid=77, ip=10.3.0.8) ")


def _line(text: str) -> LogLine:
    rank, body = split_prefix(text)
    return LogLine("x.log", 1, rank, text, body)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("NVRM: Xid (PCI:0000:4f:00): 45, pid=9, Ch 01 caused by previous Xid 145", "xid_nvlink"),
        ("NVRM: Xid (PCI:0000:4f:00): 45, pid=9, Ch 01 caused by previous Xid 94", "xid_ecc"),
        ("NVRM: Xid (PCI:0000:4f:00): 45, pid=9, name=python, Ch 01", "xid_follow_up"),
        (
            "n3:1:2 [4] transport/nvls.cc:301 NCCL WARN Cuda failure 1 'invalid argument'",
            "xid_nvlink",
        ),
        ("n3:1:2 [4] init.cc:301 NCCL WARN Cuda failure 'initialization error'", "nccl_cuda"),
        (
            "               NVRM: fallen off the bus and is not responding to commands.",
            "xid_gpu_lost",
        ),
        ("amdgpu 0000:2a:00.0: {1}uncorrectable hardware error(X_ATHUB) detected!", "xid_ecc"),
        (
            "Queue 0x7f1 aborting with error : HSA_STATUS_ERROR_EXCEPTION: code: 0x1016",
            "cuda_error",
        ),
        ("THCudaCheck FAIL file=/a/THCGeneral.cpp line=51 error=30 : unknown error", "cuda_error"),
        ("RuntimeError: cuda runtime error (2) : out of memory at /a/b.cu:66", "gpu_out_of_memory"),
        ("THCudaCheck FAIL file=/a/b.cu line=58 error=2 : out of memory", "gpu_out_of_memory"),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 999: unknown error",
            "cuda_gpu_unusable",
        ),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward "
            "compatibility was attempted on non supported HW",
            "cuda_environment",
        ),
        ("salloc: Prolog failure on node n07", "slurm_node_fail"),
        (
            "(raylet) node_manager.cc:3064: 2 Workers (tasks / actors) killed due to memory pressure "
            "(OOM), 0 Workers crashed due to other reasons at node (ID: 8a, IP: 10.3.0.8)",
            "ray_workers_killed",
        ),
        (
            "(raylet) System memory low at node with IP 10.3.0.8. Used memory (60GB) / total capacity "
            "(62GB) exceeds threshold 0.95, killing latest task with name train",
            "slurm_oom",
        ),
        (
            "SystemError: DataLoader process (pid   88) exited is killed by signal: Killed.",
            "dataloader_worker_killed",
        ),
        (
            "RuntimeError: DataLoader 2 workers exit unexpectedly, pids: 8, 9",
            "dataloader_worker_killed",
        ),
        (
            "Exception: data did not match any variant of untagged enum ModelWrapper",
            "model_weights",
        ),
        ("ArrowInvalid: JSON parse error: Column() changed from string to number", "dataset_read"),
        ("slurmstepd: *** JOB 812 CANCELLED AT 2016-02-04T06:33:25 *** on n12", "slurm_cancelled"),
        ("EI0006: 2025-02-05-18:15:21 Getting socket times out. Reason: x", "collective_timeout"),
        ("2025-02-05 11:02:01 ERROR - [Errno 13] Permission denied: '/ckpt/a'", "program_denied"),
        ("[Errno 2] No such file or directory: '/data/index.json'", "program_missing"),
        (
            "s3torchconnectorclient._mountpoint_s3_client.S3Exception: Service error: The bucket does not exist",
            "object_store_denied",
        ),
        ("oss2.exceptions.NoSuchBucket: {'status': 404}", "object_store_denied"),
        (
            "azure.core.exceptions.ResourceNotFoundError: The specified container does not exist.",
            "object_store_denied",
        ),
        ("minio.error.S3Error: S3 operation failed; code: AccessDenied", "object_store_denied"),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: while running", "gpu_out_of_memory"),
    ],
)
def test_a_failure_is_known_in_other_words(text: str, rule: str) -> None:
    finding = default_rules().match(_line(text), 1)
    assert finding is not None
    assert finding.method == rule


@pytest.mark.parametrize(
    "text",
    [
        "(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed",
        "a.py:1: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount().",
        "Killed 3 stale processes of the last job",
        "retrying after [Errno 13] from /cache",
    ],
)
def test_what_only_resembles_it_is_not(text: str) -> None:
    assert default_rules().match(_line(text), 1) is None


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("srun: error: n4: task 12: Bus error", "process_crashed"),
        ("sbatch: error: CPU count per node can not be satisfied", "command_line"),
        ("train.py: error: the following arguments are required: --data", "command_line"),
        ("/job/run: line 12:    93 Killed       python train.py", "process_killed"),
        ("Killed", "process_killed"),
        ("Segmentation fault (core dumped)", "process_crashed"),
    ],
)
def test_what_shells_and_slurm_say_is_known_behind_any_prefix(
    prefix: str, text: str, rule: str
) -> None:
    finding = default_rules().match(_line(prefix + text), 1)
    assert finding is not None
    assert finding.method == rule


def test_a_task_that_crashed_is_why_slurm_cancelled_the_step(tmp_path: Path) -> None:
    verdict = verdict_on_text(
        tmp_path,
        "step 1 loss: 2.0\nstep 2 loss: 1.9\n"
        "srun: error: n18: task 29: Bus error\n"
        "srun: Terminating StepId=345.0\n"
        "slurmstepd: error: *** STEP 345.0 ON n01 CANCELLED AT 2025-10-27T20:22:22 ***\n",
    )
    assert (verdict.failure_class, verdict.root_cause_line) == ("RuntimeError", 3)


def test_tasks_that_crash_as_the_step_is_cancelled_are_no_cause(tmp_path: Path) -> None:
    verdict = verdict_on_text(
        tmp_path,
        "step 1 loss: 2.0\nstep 2 loss: 1.9\n"
        "slurmstepd: error: *** STEP 345.0 ON n01 CANCELLED AT 2025-10-27T20:22:22 ***\n"
        "srun: error: n18: task 29: Bus error\n",
    )
    assert (verdict.failure_class, verdict.action) == ("SlurmCancelled", "none")


def test_a_bare_exception_below_a_drawn_traceback_is_read(tmp_path: Path) -> None:
    verdict = verdict_on_text(
        tmp_path,
        "│ ❱ 88 │   raise Exception('the plan has no stage 3')    │\n"
        "╰──────────────────────────────────────────────────────╯\n"
        "Exception: the plan has no stage 3\n",
    )
    assert (verdict.failure_class, verdict.root_cause_line) == ("RuntimeError", 3)
