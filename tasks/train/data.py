"""Training and validation samples: megatron-core's GPTDataset over the prepared token files.

Which samples a step sees depends on the seed and on the position in the data, so a resumed run goes
on where it stopped, also under another data-parallel size. Reads data/{train,validation}.*, writes
data/index_cache/, which may be deleted.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.errors import CorpusError
from configs.fault_schema import FaultConfig
from configs.files import sha256_of_json, sync_directory, sync_file
from configs.records import DataManifest, SplitRecord
from configs.rundir import RunDir
from configs.samples import SampleStream
from configs.schema import RunConfig
from tasks.train.distributed import World
from tasks.train.mcore import GPTDataset, GPTDatasetConfig, Split
from tasks.train.poison import PoisonedSamples, Samples, poisons_of

logger = logging.getLogger(__name__)

Batch = dict[str, torch.Tensor]

_LOOK_INTERVAL_S = 0.1


class TokenIds:
    """All that megatron-core's data sets ask of a tokenizer: its size and its end-of-text token."""

    def __init__(self, vocab_size: int, end_of_text_id: int) -> None:
        self.vocab_size = vocab_size
        self.eod = end_of_text_id
        self.unique_identifiers = {"vocab_size": vocab_size, "eod": end_of_text_id}


@dataclass(frozen=True)
class Datasets:
    """Token sequences to train on and to validate on, cut from different documents."""

    train: Samples
    validation: Samples


def open_datasets(
    run: RunDir,
    manifest: DataManifest,
    config: RunConfig,
    world: World,
    *,
    on_poison: Callable[[FaultConfig], None] = lambda fault: None,
) -> Datasets:
    """Open both data sets; rank 0 builds their sample indices first, where there are none yet.

    `on_poison` hears of each `poison_data` fault when the first of its samples is read.
    """
    cache = run.data_dir / "index_cache" / _cache_name(manifest, config)
    if not world.is_main:
        _await_cache(cache, config.recovery.startup_timeout_s)
    elif not cache.is_dir():
        _build_cache(cache, run.data_dir, manifest, config)
    datasets = _open(run.data_dir, manifest, config, cache)
    if not poisons_of(config):
        return datasets
    return Datasets(
        PoisonedSamples(datasets.train, config, manifest.vocab_size, on_poison), datasets.validation
    )


class MicroBatches:
    """This rank's micro-batches of the global batches from a position on, one global batch after another.

    Each micro-batch of all data-parallel ranks together is a run of consecutive samples, so the
    samples of a global batch do not depend on the number of ranks. Without a `stream` that says what is
    left out, all of the data set is read.
    """

    def __init__(
        self,
        dataset: Samples,
        config: RunConfig,
        world: World,
        *,
        consumed_samples: int = 0,
        stream: SampleStream | None = None,
    ) -> None:
        self._dataset = dataset
        self._size = config.train.micro_batch_size
        self._stride = self._size * world.data_size
        self._offset = self._size * world.data_rank
        self._stream = stream or SampleStream(config.train.global_batch_size, dataset.num_samples)
        self._position = consumed_samples
        self._starts: Iterator[int] = iter(())
        self._device = world.device
        positions = torch.arange(config.model.sequence_length, device=world.device)
        self._positions = positions.expand(self._size, -1)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        start = next(self._starts, None)
        if start is None:
            self._starts = self._next_batch()
            start = next(self._starts)
        positions = range(start, start + self._size)
        samples = [self._dataset[self._stream.index(position)] for position in positions]
        return {
            "tokens": self._stack(samples, "tokens"),
            "labels": self._stack(samples, "labels"),
            "position_ids": self._positions,
        }

    def _next_batch(self) -> Iterator[int]:
        """Where this rank's micro-batches of the next global batch begin."""
        start = self._stream.seek(self._position)
        if start != self._position:
            logger.info("samples %d to %d of the data are skipped", self._position, start)
        self._position = start + self._stream.batch
        return iter(range(start + self._offset, self._position, self._stride))

    def _stack(self, samples: list[dict[str, Any]], name: str) -> torch.Tensor:
        stacked = torch.stack([sample[name] for sample in samples])
        return stacked.to(self._device, non_blocking=True)


def micro_batch_count(config: RunConfig) -> int:
    """Micro-batches that each data-parallel rank computes in a step."""
    return config.train.global_batch_size // (config.train.micro_batch_size * config.parallel.data)


def _open(data_dir: Path, manifest: DataManifest, config: RunConfig, cache: Path) -> Datasets:
    batch = config.train.global_batch_size
    dataset_config = GPTDatasetConfig(
        random_seed=config.seed,
        sequence_length=config.model.sequence_length,
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=TokenIds(manifest.vocab_size, manifest.end_of_text_id),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )

    def dataset(part: SplitRecord, split: Any, samples: int) -> GPTDataset:
        tokens = GPTDataset.build_low_level_dataset(str(data_dir / part.prefix), dataset_config)
        documents = np.arange(len(tokens), dtype=np.int32)
        return GPTDataset(tokens, part.prefix, documents, samples, split, dataset_config)

    return Datasets(
        train=dataset(manifest.train, Split.train, config.train.steps * batch),
        validation=dataset(
            manifest.validation, Split.valid, config.train.validation_batches * batch
        ),
    )


def _build_cache(cache: Path, data_dir: Path, manifest: DataManifest, config: RunConfig) -> None:
    """Build the indices beside their place and rename: a crash leaves no half of them."""
    building = cache.with_name(f".{cache.name}.tmp")
    if building.exists():
        shutil.rmtree(building)  # by a job that was killed
    building.mkdir(parents=True)
    try:
        _open(data_dir, manifest, config, building)
        for path in building.iterdir():
            sync_file(path)
        building.rename(cache)
        sync_directory(cache.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _await_cache(cache: Path, timeout_s: float) -> None:
    """Wait for rank 0's indices: of a very large corpus, for longer than any agreement may take.

    Should rank 0 fail, torchrun ends this process.
    """
    deadline = time.monotonic() + timeout_s
    while not cache.is_dir():
        if time.monotonic() > deadline:
            raise CorpusError(
                f"rank 0 has not built the sample indices {cache} within "
                f"recovery.startup_timeout_s = {timeout_s:g} s: a larger limit would give it time"
            )
        time.sleep(_LOOK_INTERVAL_S)


def _cache_name(manifest: DataManifest, config: RunConfig) -> str:
    train = config.train
    key = {
        "fingerprint": manifest.fingerprint,
        "train": manifest.train.sha256_idx,
        "validation": manifest.validation.sha256_idx,
        "seed": config.seed,
        "sequence_length": config.model.sequence_length,
        "samples": [train.steps, train.validation_batches, train.global_batch_size],
    }
    return sha256_of_json(key)[:16]
