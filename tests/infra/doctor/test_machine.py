"""What is found out about the machine, when it is well and when it is not."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from infra.doctor import machine
from infra.doctor.findings import Status

STOP = threading.Event()
GPU = {"name": "H200", "bytes": 139 << 30}
ANSWER = {"torch": "2.13.0", "cuda": "12.8", "gpus": [GPU, GPU], "gpu_error": None}
WITH_NCCL = {**ANSWER, "nccl": "2.27.5", "nccl_error": None}


def test_this_python_and_its_packages_fit() -> None:
    assert machine.check_python(STOP).status is Status.OK
    assert machine.check_packages(STOP).status in (Status.OK, Status.SKIPPED)


def test_packages_that_are_missing_or_of_another_version() -> None:
    wanted = [
        Requirement("no-such-package-here>=1"),
        Requirement("pytest>=9999"),
        Requirement("numpy"),
    ]
    found = machine.judge_packages(wanted)
    assert found.status is Status.FAILED
    assert "no-such-package-here is missing; pytest is " in found.sentence
    assert "must be >=9999" in found.sentence


@pytest.fixture
def few_open_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_few_open_files(few_open_files: None) -> None:
    found = machine.check_open_files(STOP)
    assert found.status is Status.WARNING
    assert "may open 512" in found.sentence
    assert machine.judge_open_files("open files", 512, 1024).sentence.endswith("limits.conf")
    unlimited = resource.RLIM_INFINITY
    assert machine.judge_open_files("open files", unlimited, unlimited).status is Status.OK


def test_node_memory(tmp_path: Path) -> None:
    assert machine.check_memory_folder(STOP, tmp_path, 1).status is Status.OK
    small = machine.check_memory_folder(STOP, tmp_path, 1 << 60)
    assert (small.status, "docker run --shm-size" in small.sentence) == (Status.WARNING, True)
    absent = machine.check_memory_folder(STOP, tmp_path / "none", 1)
    assert (absent.status, "checkpoint.memory=off" in absent.sentence) == (Status.WARNING, True)


# --- torch ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_torch_and_megatron_here() -> None:
    torch, gpus, nccl = machine.check_torch(STOP, None)
    assert (torch.status, gpus.status) == (Status.OK, Status.OK)
    assert nccl.status in (Status.OK, Status.SKIPPED)
    assert machine.check_megatron(STOP).status is Status.OK


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("raise ImportError('libcudart.so.12: no such file')", "ImportError: libcudart.so.12"),
        ("import os; os.kill(os.getpid(), 11)", "its process ended with signal 11"),
        ("import time; time.sleep(60)", "no end within 5 s"),
    ],
)
def test_a_torch_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, sentence: str
) -> None:
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = machine.run_probe("torch", limit_s=5)
    torch, gpus, nccl = machine.judge_torch(answer, 1, True)
    assert (torch.status, gpus.status, nccl.status) == (
        Status.FAILED,
        Status.SKIPPED,
        Status.SKIPPED,
    )
    assert sentence in torch.sentence


def test_a_megatron_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "__init__.py").write_text(
        "raise ImportError('built for another torch')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = machine.check_megatron(STOP)
    assert (found.status, "built for another torch" in found.sentence) == (Status.FAILED, True)


def test_gpus_that_are_there_and_those_that_are_not() -> None:
    torch, gpus, nccl = machine.judge_torch(WITH_NCCL, 2, True)
    assert {torch.status, gpus.status, nccl.status} == {Status.OK}
    assert gpus.sentence == "2 x H200, 139 GiB each"

    _, gpus, _ = machine.judge_torch(WITH_NCCL, 8, True)
    assert (gpus.status, "sees 2, but 8" in gpus.sentence) == (Status.FAILED, True)

    without = WITH_NCCL | {"gpus": [], "cuda": None}
    _, gpus, nccl = machine.judge_torch(without, None, True)
    assert (gpus.status, "build without CUDA" in gpus.sentence) == (Status.FAILED, True)
    assert nccl.status is Status.SKIPPED
    _, gpus, _ = machine.judge_torch(without, None, False)
    assert gpus.status is Status.OK

    driver = WITH_NCCL | {"gpus": [], "gpu_error": "the NVIDIA driver is too old"}
    _, gpus, _ = machine.judge_torch(driver, 8, True)
    assert (gpus.status, "driver is too old" in gpus.sentence) == (Status.FAILED, True)

    _, _, nccl = machine.judge_torch(WITH_NCCL | {"nccl_error": "unhandled system error"}, 2, True)
    assert (nccl.status, "unhandled system error" in nccl.sentence) == (Status.FAILED, True)
    _, _, nccl = machine.judge_torch(WITH_NCCL | {"nccl": None}, 2, True)
    assert nccl.status is Status.FAILED


def test_the_python_of_this_test_is_the_one_that_is_probed() -> None:
    assert sys.prefix in machine.check_python(STOP).sentence
