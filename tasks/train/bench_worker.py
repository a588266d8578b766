"""One rank of the training benchmark, under torchrun; see bench.py.

python -m tasks.train.bench_worker FOLDER --steps N
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from configs.files import write_json
from configs.records import DataManifest, SplitRecord
from configs.rundir import RunDir, write_record
from configs.schema import RunConfig
from configs.shapes import count_parameters
from tasks.train import distributed
from tasks.train.attempt import build_state, empty_marker, read_inputs
from tasks.train.bench import ARMS, RESULT_FILE, WARM_UP_STEPS
from tasks.train.bench_estimate import collector_off, paired_overhead
from tasks.train.checkpoint_save import new_checkpointer
from tasks.train.data import Batch, MicroBatches, micro_batch_count, open_datasets
from tasks.train.events import EventLog
from tasks.train.faults import Faults
from tasks.train.job import log_to
from tasks.train.loop import Trainer, forward_step
from tasks.train.mcore import IndexedDatasetBuilder, get_forward_backward_func
from tasks.train.state import TrainingState

_VOCAB_SIZE = 4096


def measure(run: RunDir, steps: int) -> dict[str, Any] | None:
    """Measure on this rank; rank 0 returns the result."""
    attempt = run.attempt(1)
    if os.environ["RANK"] == "0":
        _write_random_corpus(run.data_dir)
    while run.manifest() is None:
        time.sleep(0.1)
    config, manifest = read_inputs(run, attempt)
    world = distributed.start(config)
    datasets = open_datasets(run, manifest, config, world)
    state = build_state(config, manifest.vocab_size, world)
    marker = empty_marker(config, manifest, attempt.number, world.precision)
    events = EventLog(attempt.events_path)
    faults = Faults(config.faults, attempt=1, rank=world.rank, events=events)
    checkpointer = new_checkpointer(config, run, attempt, world, state, marker)
    trainer = Trainer(config, run, world, state, datasets, marker, events, faults, checkpointer)
    batches = MicroBatches(datasets.train, config, world)
    times = _measure(lambda: trainer.step(batches), bare_loop(state, config, batches), steps)
    overhead = paired_overhead(times["ours"], times["bare"])
    result = {
        "ours_step_s": statistics.median(times["ours"]),
        "bare_step_s": statistics.median(times["bare"]),
        "overhead": overhead.value,
        "overhead_low": overhead.low,
        "overhead_high": overhead.high,
        "noise": paired_overhead(times["bare_again"], times["bare"]).value,
        "steps": steps,
        "model_parameters": count_parameters(config.model, marker.padded_vocab_size),
        "processes": world.size,
    }
    checkpointer.close(remove=True)
    distributed.stop()
    return result if world.is_main else None


def bare_loop(
    state: TrainingState, config: RunConfig, batches: Iterator[Batch]
) -> Callable[[], None]:
    """One step, straight on megatron-core."""
    forward_backward = get_forward_backward_func()
    count = micro_batch_count(config)

    def step() -> None:
        state.ddp.zero_grad_buffer()
        state.optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[state.ddp],
            num_microbatches=count,
            seq_length=config.model.sequence_length,
            micro_batch_size=config.train.micro_batch_size,
            forward_only=False,
        )
        state.optimizer.step()
        state.schedule.step(increment=1)
        sum(float(reported["loss"]) for reported in losses)

    return step


def _measure(
    ours: Callable[[], object], bare: Callable[[], None], steps: int
) -> dict[str, list[float]]:
    """Step times by arm, a round of all arms at a time.

    The bare step is in the middle, next to both others, which change sides from round to round: what
    the first of two steps has before the second, both have.
    """
    loops = dict(zip(ARMS, (ours, bare, bare), strict=True))
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with collector_off():
        for turn in range(WARM_UP_STEPS + steps):
            for arm in ARMS if turn % 2 == 0 else reversed(ARMS):
                times[arm].append(_timed(loops[arm]))
    return {arm: measured[WARM_UP_STEPS:] for arm, measured in times.items()}


def _timed(step: Callable[[], object]) -> float:
    """Seconds of a step that all ranks begin and end together.

    Without the common end, the loop that does not wait for the other ranks in a step would leave
    that wait to the other loop.
    """
    dist.barrier()
    started = time.perf_counter()
    step()
    dist.barrier()
    return time.perf_counter() - started


def _write_random_corpus(data_dir: Path) -> None:
    """Random tokens as a prepared data folder; the manifest is written last."""
    data_dir.mkdir(parents=True)
    write_record(
        data_dir / "manifest.json",
        DataManifest(
            fingerprint="random",
            sources=[],
            documents_read=0,
            documents_empty=0,
            documents_duplicate=0,
            tokenizer_sha256="none",
            vocab_size=_VOCAB_SIZE,
            end_of_text_id=0,
            train=_write_random_split(data_dir, "train", documents=400),
            validation=_write_random_split(data_dir, "validation", documents=20),
            bytes_per_token=1.0,
            created_at=0.0,
            duration_s=0.0,
        ),
    )


def _write_random_split(data_dir: Path, prefix: str, documents: int) -> SplitRecord:
    random, tokens = np.random.default_rng(documents), 0
    builder = IndexedDatasetBuilder(str(data_dir / f"{prefix}.bin"), dtype=np.uint16)
    for _ in range(documents):
        document = random.integers(1, _VOCAB_SIZE, size=random.integers(100, 1000))
        builder.add_document(document, [len(document)])
        tokens += len(document)
    builder.finalize(str(data_dir / f"{prefix}.idx"))
    return SplitRecord(
        prefix=prefix, documents=documents, tokens=tokens, sha256_bin="", sha256_idx=""
    )


def main() -> int:
    """Measure; rank 0 leaves the result in the folder."""
    parser = argparse.ArgumentParser(description="One rank of the training benchmark.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    run = RunDir(options.folder)
    log_to(run.attempt(1).rank_log(int(os.environ["RANK"])))
    result = measure(run, options.steps)
    if result is not None:
        write_json(run.path / RESULT_FILE, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
