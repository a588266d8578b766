"""What libraries print about what they do without is not why the job failed, nor why a good one ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on_text

STEPS = "".join(f"step {n} loss: 2.{n}\n" for n in range(1, 4))
FAILURE = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 8, in <module>\n    w = cfg["warmup"]\n'
    "KeyError: 'warmup'\n"
)
NOTICES = [
    "2025-05-02 11:20:17.3: W tensorflow/core/platform/dso_loader.cc:64] Could not load dynamic library "
    "'libcudart.so.11.0'; dlerror: libcudart.so.11.0: cannot open shared object file: No such file",
    "2025-05-02 11:20:17.3: E external/xla/cuda/cuda_driver.cc:266] failed call to cuInit: "
    "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    "W0502 11:20:17.334 480 loader.cc:12] libx.so.2: cannot open shared object file",
    "layer_norm: No module named 'fused_norm', using torch's own",
    "APEX not found: No module named 'apex'",
    "/e/m.py:22: UserWarning: flash_attn could not be imported: libcudart.so.12: cannot open shared "
    "object file: No such file or directory",
]


@pytest.mark.parametrize("notice", NOTICES)
@pytest.mark.parametrize("before", ["", STEPS])
def test_a_notice_is_not_why_the_job_failed(tmp_path: Path, before: str, notice: str) -> None:
    verdict = verdict_on_text(tmp_path, f"{before}{notice}\nbuilding the model\n{FAILURE}")
    assert verdict.failure_class == "KeyError"


@pytest.mark.parametrize("notice", NOTICES)
def test_a_notice_behind_the_end_of_training_takes_nothing_from_it(
    tmp_path: Path, notice: str
) -> None:
    assert (
        verdict_on_text(tmp_path, f"{STEPS}training done\n{notice}\n").failure_class == "NoFailure"
    )


@pytest.mark.parametrize(
    "line",
    [
        "python: error while loading shared libraries: libx.so.2: cannot open shared object file",
        "ImportError: libx.so.2: cannot open shared object file: No such file or directory",
        "trainer: libx.so.2: cannot open shared object file: No such file or directory",
    ],
)
def test_a_library_that_a_program_cannot_do_without_is_the_cause(tmp_path: Path, line: str) -> None:
    assert verdict_on_text(tmp_path, f"starting\n{line}\n").failure_class == "ImportError"


def test_of_a_gpu_that_tensorflow_misses_too_the_cause_is_told(tmp_path: Path) -> None:
    verdict = verdict_on_text(tmp_path, f"{NOTICES[1]}\n")
    assert (verdict.failure_class, verdict.action) == ("CUDAError", "restart_exclude_node")


def test_a_rendezvous_that_fails_is_the_networks_whatever_its_store_says(tmp_path: Path) -> None:
    verdict = verdict_on_text(
        tmp_path,
        "Traceback (most recent call last):\n"
        '  File "/e/rendezvous/c10d_rendezvous_backend.py", line 155, in _create_tcp_store\n'
        "    store = TCPStore(\n"
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/e/torch/distributed/run.py", line 719, in main\n    run(args)\n'
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d "
        "store has failed. See inner exception for details.\n",
    )
    assert (verdict.failure_class, verdict.root_cause_line) == ("NetworkError", 11)


def test_a_cluster_that_is_preempted_is_no_failure_of_the_job(tmp_path: Path) -> None:
    verdict = verdict_on_text(
        tmp_path,
        f"{STEPS}(job, pid=7) I 05-04 00:52:46 controller.py:1] The cluster is preempted.\n",
    )
    assert (verdict.failure_class, verdict.action) == ("SlurmPreempted", "resubmit_later")


def test_what_a_message_says_of_using_something_is_no_word_of_going_on(tmp_path: Path) -> None:
    verdict = verdict_on_text(
        tmp_path, f"{STEPS}ValueError: bf16 needs a newer GPU, using one of the last years\n"
    )
    assert verdict.failure_class == "ValueError"
