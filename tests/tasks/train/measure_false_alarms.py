"""Counts the alarms that the spike detector gives on clean training: there should be none.

    PYTHONPATH=. python tests/tasks/train/measure_false_alarms.py [--runs N] [--steps N] [--keep LOSSES_JSON]

Trains a small model on the bytes of Python's own library, each run with another seed, learning rate,
batch and warm-up, and shows every loss to a detector with the default settings. Prints JSON: alarms,
single high losses (which would be alarms at a patience of one step), and the microseconds per step.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import tempfile
import time
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from training_jobs import END_OF_TEXT

from configs.records import DataManifest, SplitRecord
from configs.rundir import RunDir, write_record
from configs.schema import AnomalyConfig, RunConfig
from tasks.train import distributed
from tasks.train.attempt import build_state
from tasks.train.data import Batch, MicroBatches, micro_batch_count, open_datasets
from tasks.train.loop import forward_step
from tasks.train.mcore import IndexedDatasetBuilder, get_forward_backward_func
from tasks.train.spikes import SpikeDetector
from tasks.train.state import TrainingState

VOCAB_SIZE = 257
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
BATCHES = (4, 8, 16)
WARMUPS = (0, 10, 50)


def config_of(number: int, steps: int) -> RunConfig:
    """The settings of one run; neighbours differ in everything."""
    combinations = cycle(product(WARMUPS, BATCHES, LEARNING_RATES))
    warmup, batch, rate = next(islice(combinations, number * 7, None))
    return RunConfig.model_validate(
        {
            "seed": 1000 + number,
            "model": {
                "num_layers": 2,
                "hidden_size": 64,
                "ffn_hidden_size": 128,
                "num_attention_heads": 4,
                "num_query_groups": 2,
                "sequence_length": 64,
            },
            "train": {
                "steps": steps,
                "global_batch_size": batch,
                "micro_batch_size": 4,
                "learning_rate": rate,
                "min_learning_rate": rate / 10,
                "warmup_steps": warmup,
            },
            "launcher": {"cpu_threads": 1},
        }
    )


def write_corpus(run: RunDir) -> DataManifest:
    """Python's own library, a byte a token."""
    run.data_dir.mkdir(parents=True)
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    splits = {"train": sources[5:], "validation": sources[:5]}
    records: dict[str, SplitRecord] = {}
    for prefix, paths in splits.items():
        builder = IndexedDatasetBuilder(str(run.data_dir / f"{prefix}.bin"), dtype=np.uint16)
        tokens = 0
        for path in paths:
            text = np.frombuffer(path.read_bytes(), dtype=np.uint8).astype(np.uint16) + 1
            builder.add_document(np.append(text, END_OF_TEXT), [len(text) + 1])
            tokens += len(text) + 1
        builder.finalize(str(run.data_dir / f"{prefix}.idx"))
        records[prefix] = SplitRecord(
            prefix=prefix, documents=len(paths), tokens=tokens, sha256_bin="", sha256_idx=""
        )
    manifest = DataManifest(
        fingerprint="stdlib",
        sources=[],
        documents_read=0,
        documents_empty=0,
        documents_duplicate=0,
        tokenizer_sha256="none",
        vocab_size=VOCAB_SIZE,
        end_of_text_id=END_OF_TEXT,
        bytes_per_token=1.0,
        created_at=0.0,
        duration_s=0.0,
        train=records["train"],
        validation=records["validation"],
    )
    write_record(run.manifest_path, manifest)
    return manifest


def train(run: RunDir, manifest: DataManifest, config: RunConfig, world: Any) -> list[list[float]]:
    """Loss and gradient norm of every step of a clean run."""
    distributed.seed_everything(config.seed)
    state = build_state(config, manifest.vocab_size, world)
    batches = MicroBatches(open_datasets(run, manifest, config, world).train, config, world)
    return [_step(state, config, batches) for _ in range(config.train.steps)]


def _step(state: TrainingState, config: RunConfig, batches: MicroBatches) -> list[float]:
    state.ddp.zero_grad_buffer()
    state.optimizer.zero_grad()
    losses: list[Batch] = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=batches,
        model=[state.ddp],
        num_microbatches=micro_batch_count(config),
        seq_length=config.model.sequence_length,
        micro_batch_size=config.train.micro_batch_size,
        forward_only=False,
    )
    state.schedule.step(increment=1)
    _, grad_norm, _ = state.optimizer.step()
    return [float(np.mean([float(loss["loss"]) for loss in losses])), float(grad_norm)]


def alarms(curve: list[list[float]], **changes: Any) -> list[str]:
    """What a detector says about a curve."""
    detector = SpikeDetector(AnomalyConfig(**changes))
    seen = (detector.see(step, *values) for step, values in enumerate(curve, start=1))
    return [spike.message for spike in seen if spike]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    configs = [config_of(number, options.steps) for number in range(options.runs)]
    world = distributed.start(configs[0])
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        manifest = write_corpus(run)
        curves = [train(run, manifest, config, world) for config in configs]
    distributed.stop()
    if options.keep:
        options.keep.write_text(json.dumps(curves))
    started = time.perf_counter()
    found = [alarm for curve in curves for alarm in alarms(curve)]
    duration_s = time.perf_counter() - started
    result = {
        "runs": len(curves),
        "steps": sum(map(len, curves)),
        "false_alarms": len(found),
        "single_high_losses": sum(len(alarms(c, spike_patience_steps=1)) for c in curves),
        "first_losses": [round(curve[0][0], 2) for curve in curves],
        "last_losses": [round(curve[-1][0], 2) for curve in curves],
        "us_per_step": round(duration_s / sum(map(len, curves)) * 1e6, 1),
        "messages": found,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
