"""What a checkpoint costs training: ours beside others' and a synchronous save, in one run.

One process trains a model of 100 million parameters with one compute thread; the other cores are for
whoever writes, alike for all. The ways to save (arms) take turns, round by round, each with steps
without any save before and after it to compare with, so that a machine that gets slower or faster
treats all alike. Two figures of each save:

- blocked: how long training stood still. The call, what the optimizer then waited for, and what was
  done between later steps to finish it.
- slowdown: how much longer the steps took until the save was whole than the steps around it. It may
  come out below zero where it is smaller than the noise.

The first and the last save of each arm are read back with torch's distributed checkpoint and compared
with the state at the moment of the save.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from configs.errors import CheckpointError, InputError, RunFailedError
from configs.memory import GIB
from configs.rundir import RunDir
from configs.schema import (
    DataConfig,
    LauncherConfig,
    ModelConfig,
    RunConfig,
    TokenizerConfig,
    TrainConfig,
)
from configs.shapes import count_parameters, padded_vocab_size
from tasks.train.node_memory import SHARED_MEMORY, free_bytes, give_back

RESULT_FILE = "bench.json"
RESTART_FILE = "restart.json"
LEAST_SAVES = 2

# Copies of the state that are there at the same time, over all arms: the training state with its
# gradients, torch's two, what a forked process keeps, our two, and one that is read back.
_COPIES_IN_MEMORY = 8.5
_COPIES_IN_SHARED_MEMORY = 3
_COPIES_ON_DISK = 2
_PROCESSES_BYTES = 2 * GIB
_RESTARTS = 3


def bench_checkpoint(*, saves: int = 5, config: RunConfig | None = None) -> dict[str, Any]:
    """Measure `saves` saves of each arm, and one before them, in one torchrun job on this machine.

    Returns `results` (an arm each: name, blocked_s, first_blocked_s, slowdown_s, ratio_vs_sync; medians
    but for the first), `ways` (the same, for each way to use an arm), `synchronous_by`,
    `restart_from_memory_s`, `restart_from_storage_s` (to find, check and load, in a new process; medians
    of three), `model_parameters`, `state_bytes`, `step_s`, `saves`, `threads`, `device`, and in
    `details` all that was measured. `config` changes model and batch.
    """
    if saves < LEAST_SAVES:
        raise InputError(f"a median needs at least {LEAST_SAVES} saves, not {saves}")
    config = config or default_config(on_gpu=_has_gpu())
    with tempfile.TemporaryDirectory(prefix="overland-bench-") as folder:
        check_room(state_size_bytes(config), Path(folder))
        run = RunDir(Path(folder))
        run.attempt(1).path.mkdir(parents=True)
        run.attempt(1).config_path.write_text(config.model_dump_json())
        try:
            _run_job(run, config, "tasks.train.bench_checkpoint_worker", "--saves", str(saves))
            result: dict[str, Any] = json.loads((run.path / RESULT_FILE).read_text())
            return result | _restarts(run, config, result.pop("saved_digest"))
        finally:
            give_back(run.path)  # snapshots outlive the processes that made them


def _restarts(run: RunDir, config: RunConfig, saved: dict[str, int]) -> dict[str, Any]:
    """Restart some times, each in a new process, from memory and from storage."""
    loads: dict[str, list[float]] = {"memory": [], "storage": []}
    for _ in range(_RESTARTS):
        _run_job(run, config, "tasks.train.bench_checkpoint_overland")
        restart = json.loads((run.path / RESTART_FILE).read_text())
        for source, found in restart.items():
            if found["digest"] != saved:
                raise CheckpointError(
                    f"the restart from {source} has not brought back the state that was saved: "
                    f"{found['digest']}, expected {saved}"
                )
            loads[source].append(found["load_s"])
    return {f"restart_from_{source}_s": statistics.median(s) for source, s in loads.items()}


def _run_job(run: RunDir, config: RunConfig, module: str, *arguments: str) -> None:
    """Run a module of this benchmark under torchrun, with one compute thread."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node=1", "--max-restarts=0", "-m", module, str(run.path), *arguments),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(config.launcher.cpu_threads or 1)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        logs = [path.read_text()[-4000:] for path in run.attempt(1).path.glob("rank_*.log")]
        raise RunFailedError("\n".join(["the benchmark job failed", done.stderr[-2000:], *logs]))


def default_config(*, on_gpu: bool) -> RunConfig:
    """A model whose step takes about a second: long enough to copy its state during a backward pass."""
    if on_gpu:
        model = ModelConfig(
            num_layers=24,
            hidden_size=1024,
            ffn_hidden_size=2816,
            num_attention_heads=16,
            num_query_groups=16,
            sequence_length=2048,
        )
    else:
        model = ModelConfig(
            num_layers=12,
            hidden_size=768,
            ffn_hidden_size=2048,
            num_attention_heads=12,
            num_query_groups=12,
            sequence_length=96,
        )
    batch = 32 if on_gpu else 1
    return RunConfig(
        name="bench-checkpoint",
        model=model,
        data=DataConfig(tokenizer=TokenizerConfig(vocab_size=12288)),
        train=TrainConfig(global_batch_size=batch, micro_batch_size=min(batch, 8)),
        launcher=LauncherConfig(processes_per_node=1, cpu_threads=1),
    )


def state_size_bytes(config: RunConfig) -> int:
    """Weights and Adam's two moments in fp32; beside them weights in bf16 where it trains so."""
    parameters = count_parameters(config.model, padded_vocab_size(vocab_size(config)))
    return parameters * (14 if _has_gpu() else 12)


def vocab_size(config: RunConfig) -> int:
    """The vocabulary of the random tokens."""
    return config.data.tokenizer.vocab_size


def check_room(state_bytes: int, folder: Path) -> None:
    """Refuse to start what would not fit."""
    memory = psutil.virtual_memory().available
    needed = (
        ("memory", memory, _COPIES_IN_MEMORY * state_bytes + _PROCESSES_BYTES),
        (f"memory in {SHARED_MEMORY}", free_bytes(), _COPIES_IN_SHARED_MEMORY * state_bytes),
        (f"disk at {folder.parent}", shutil.disk_usage(folder).free, _COPIES_ON_DISK * state_bytes),
    )
    for what, free, wanted in needed:
        if free < wanted:
            raise InputError(
                f"the checkpoint benchmark needs {wanted / GIB:.1f} GiB of {what} for a state of "
                f"{state_bytes / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free"
            )


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description="What a checkpoint costs training.")
    parser.add_argument("--saves", type=int, default=5)
    options = parser.parse_args(arguments)
    print(json.dumps(bench_checkpoint(saves=options.saves), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
