"""Runs real training jobs over a tiny corpus in Megatron's format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from configs.events import StepEvent, ValidationEvent
from configs.files import sha256_of_file
from configs.records import SplitRecord
from configs.rundir import AttemptDir, RunDir
from configs.schema import RunConfig
from infra.launch.torchrun import meet_in_file

VOCAB_SIZE = 300
END_OF_TEXT = 0
STEPS = 8
JOB_TIMEOUT_S = 240

BASE_CONFIG: dict[str, Any] = {
    "model": {
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 64,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "sequence_length": 16,
    },
    "parallel": {"data": 2},
    "train": {
        "steps": STEPS,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "validation_interval_steps": 4,
        "validation_batches": 2,
        "process_group_timeout_s": 60,
    },
    # Each step takes milliseconds: without waiting, a fault would strike before the commit.
    "checkpoint": {
        "interval_steps": 3,
        "save_timeout_s": 60,
        "wait_for_commit": True,
        "memory": "off",
        "save_attempts": 1,
    },
    "launcher": {"cpu_threads": 1},
}


def write_split(data_dir: Path, prefix: str, documents: int, seed: int) -> SplitRecord:
    """Random documents as a Megatron data set."""
    with warnings.catch_warnings(action="ignore"):
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    random = np.random.default_rng(seed)
    bin_path, idx_path = data_dir / f"{prefix}.bin", data_dir / f"{prefix}.idx"
    builder = IndexedDatasetBuilder(str(bin_path), dtype=np.uint16)
    tokens = 0
    for _ in range(documents):
        # Skewed, so that there is something to learn.
        ids = np.minimum(1 + random.geometric(0.05, size=random.integers(8, 60)), VOCAB_SIZE - 1)
        document = np.append(ids, END_OF_TEXT)
        builder.add_document(document, [len(document)])
        tokens += len(document)
    builder.finalize(str(idx_path))
    return SplitRecord(
        prefix=prefix,
        documents=documents,
        tokens=tokens,
        sha256_bin=sha256_of_file(bin_path),
        sha256_idx=sha256_of_file(idx_path),
    )


@dataclass(frozen=True)
class JobResult:
    """A training job that has ended."""

    attempt: AttemptDir
    exit_code: int
    output: str

    def steps(self) -> dict[int, StepEvent]:
        return {e.step: e for e in self.attempt.events() if isinstance(e, StepEvent)}

    def validations(self) -> dict[int, float]:
        return {e.step: e.loss for e in self.attempt.events() if isinstance(e, ValidationEvent)}

    def log(self, rank: int = 0) -> str:
        return self.attempt.rank_log(rank).read_text()

    def explain(self) -> str:
        logs = [p.read_text()[-3000:] for p in sorted(self.attempt.path.glob("rank_*.log"))]
        return f"exit code {self.exit_code}\n" + "\n".join([self.output[-2000:], *logs])


Overrides = dict[str, dict[str, Any] | list[dict[str, Any]]]
RunJob = Callable[..., JobResult]


def make_config(overrides: Overrides) -> RunConfig:
    """The tiny config, with sections changed."""
    sections: dict[str, Any] = json.loads(json.dumps(BASE_CONFIG))
    for name, change in overrides.items():
        sections[name] = (
            {**sections.get(name, {}), **change} if isinstance(change, dict) else change
        )
    return RunConfig.model_validate(sections)


def torchrun(processes: int, rendezvous: Path) -> tuple[str, ...]:
    """Python's arguments that start ranks, up to what they run."""
    return (
        *("-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={processes}"),
        *("--max-restarts=0", *meet_in_file(rendezvous)),
    )


def run_training_job(
    run: RunDir, number: int, overrides: Overrides, *, events_to: Path | None = None
) -> JobResult:
    """Run one attempt under torchrun, as a launcher does; its events may go elsewhere."""
    config = make_config(overrides)
    attempt = run.attempt(number)
    attempt.path.mkdir(parents=True)
    if events_to is not None:
        attempt.events_path.symlink_to(events_to)
    attempt.config_path.write_text(config.model_dump_json())
    command = [
        *(sys.executable, *torchrun(config.parallel.world_size, attempt.path / "rendezvous")),
        *("-m", "tasks.train.job", str(run.path), "--attempt", str(number)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    return JobResult(attempt, done.returncode, done.stdout)
