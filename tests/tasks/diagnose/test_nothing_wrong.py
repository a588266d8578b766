"""Lines that have the words of a fault and say that there is none, or list what is always so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.diagnose.absence import IdleHosts, RollCall
from tasks.diagnose.captures import capture_in
from tasks.diagnose.diagnose import diagnose_files
from tasks.diagnose.host_names import may_name_host
from tasks.diagnose.logs import LogLine
from tasks.diagnose.pods import Pods
from tasks.diagnose.reports import loss_of

REAL = "ModuleNotFoundError: No module named 'flash_attn'"


@pytest.mark.parametrize(
    "text",
    [
        "NVLink CRC errors: 0",
        "nvlink fatal errors = 0",
        "NVLink: 18 active, 0 inactive links",
        "Uncorrectable ECC errors: 0",
        "Double-bit ECC errors: 0",
        "Row remap failure: no",
        "no GPU needs a reset",
        "GPU 0 requires reset: no",
        "watching for Xid 79, 119, 120",
        "gpu07 missed 0 heartbeats",
        "rank 3 missed 5 heartbeats",
        "oom_kill events: 0",
        "k8s: pod titan-1 exit code 1 reason Error; OOMKilled: false",
        "          Link 4: <inactive>",
        "3: enp65s0f1: <NO-CARRIER,BROADCAST,MULTICAST,UP>",
        "mlx5_3 port 1 is down",
        "mlx5_core 0000:9a:00.0: Port module event[error]: module 0, Cable error, Cable unplugged",
        "link down events: 0",
        "library link down below",
        "Titanic dataset: download finished",
        "NIC mlx5_0 uses failover group 1",
    ],
)
def test_the_real_error_is_found_beside_it(tmp_path: Path, text: str) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        f'{text}\nTraceback (most recent call last):\n  File "t.py", line 1, in <module>\n{REAL}\n'
    )
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.action) == ("ImportError", "fix_by_user")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpu07 Uncorrectable ECC errors: 3", "ECCError"),
        ("gpu07 NVLink CRC errors: 12 replay errors: 0", "NVLinkError"),
        ("gn-07: GPU 3 requires reset", "CUDAError"),
        ("gn-07 missed 3 heartbeats", "NodeFailure"),
        (
            "pod a-0 exit code 1, OOMKilled: false; pod a-1 exit code 137, OOMKilled: true",
            "CgroupOOM",
        ),
    ],
)
def test_counts_above_zero_are_faults(tmp_path: Path, text: str, name: str) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{text}\n[rank0]: RuntimeError: something else\n")
    assert diagnose_files([log]).failure_class == name


@pytest.mark.parametrize(
    "name", ["A100-SXM4-80GB", "H100-80GB", "H200-NVL", "GPU3", "cuda12", "ib0"]
)
def test_gpus_and_interfaces_are_no_hosts(tmp_path: Path, name: str) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"[ERROR] {name}: uncorrectable ECC error\n")
    assert diagnose_files([log]).faulty_node is None


@pytest.mark.parametrize("name", ["h100-04", "a100-node3", "h200-13", "gh200-x2"])
def test_hosts_may_be_called_after_their_gpus(name: str) -> None:
    assert may_name_host(name)


def test_groups_of_ranks_are_no_roll_call() -> None:
    call = RollCall()
    for text in ("tp rank 0 of 8", "eval rank 1/8", "local rank 2/4"):
        call.feed(LogLine("a.log", 1, None, text, text))
    assert (call.size, call.present) == (0, set())


def test_processors_may_be_idle() -> None:
    hosts = IdleHosts()
    for text in ("gn01 cpu util 0%", "gn02 GPU Util: 99%"):
        hosts.feed(LogLine("a.log", 1, None, text, text), 0)
    assert hosts.busy == {"gn02": 99}


def test_the_age_of_a_checkpoint_is_not_that_of_the_output() -> None:
    seen = capture_in("2025-01-01 10:00:00 state=RUNNING last checkpoint written 45 m ago")
    assert seen is not None and seen.silence_s is None


def test_a_description_ends_with_its_file() -> None:
    pods = Pods()
    for text in ("Name:   ft-0", "Node:   gn-17/10.0.0.1"):
        pods.feed(text, "a.log")
    assert pods.described == "gn-17"
    pods.feed("RuntimeError: CUDA error", "b.log")
    assert pods.described is None


@pytest.mark.parametrize(("loss", "name"), [("nan", "LossSpike"), ("1.5", "NoFailure")])
def test_a_job_that_ends_well_without_a_loss_has_learnt_nothing(
    tmp_path: Path, loss: str, name: str
) -> None:
    path = tmp_path / "job.log"
    losses = [*["1.6"] * 30, *[loss] * 30]
    steps = [f"{{'loss': {value}, 'learning_rate': 6e-06, 'epoch': 2.0}}" for value in losses]
    end = "{'train_runtime': 5512.1, 'train_loss': 0.0, 'epoch': 3.0}"
    path.write_text("\n".join([*steps, end, "[done] exit code 0"]) + "\n")
    verdict = diagnose_files([path])
    assert verdict.failure_class == name
    assert verdict.root_cause_line == (31 if loss == "nan" else None)


def test_nemos_name_of_the_loss_is_read() -> None:
    body = "Training epoch 0, iteration 9/99 | global_step: 9 | reduced_train_loss: 1.88"
    assert loss_of(LogLine("job.log", 1, None, body, body)) == 1.88


@pytest.mark.parametrize(
    ("body", "loss"),
    [
        ("[step=9/20,epoch=0] train/CrossEntropyLoss=2.257 train/Perplexity=9.6", 2.257),
        ("step 9 train/CE loss=2.25, grad norm 0.4", 2.25),
        ("step 9 train cross entropy loss: 2.25", 2.25),
        ("eval/c4/CrossEntropyLoss=2.257", None),
    ],
)
def test_a_loss_is_known_by_its_trainers_name(body: str, loss: float | None) -> None:
    assert loss_of(LogLine("job.log", 1, None, body, body)) == loss
