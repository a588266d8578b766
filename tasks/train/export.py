"""Exports a committed checkpoint as a Hugging Face folder that transformers loads as a Llama.

    python -m tasks.train.export RUN_DIR STEP

Reads checkpoints/step_N/ (files in storage are fetched) and data/{manifest.json,tokenizer/}; writes
evaluations/step_N/model/:
weights in safetensors, config.json, generation_config.json and the tokenizer's files. The folder is
written under another name and renamed when it is whole, then export.json names the checkpoint; an
export of the checkpoint as it is now is left alone, one of an earlier save of the step is replaced.

Runs in one process beside the training, once a checkpoint, so it starts fast: neither megatron-core
nor transformers is imported. Weights keep the precision that they were trained in. One group of
tensors is in memory at a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from configs.errors import EXIT_OK, CheckpointError, CorpusError, OverlandError
from configs.files import sync_directory, sync_file, write_json
from configs.records import CommitMarker, DataManifest, ExportRecord
from configs.rundir import RunDir, write_record
from configs.schema import ModelConfig
from tasks.train.checkpoint_read import CheckpointReader
from tasks.train.staging import committed_checkpoint

MAX_SHARD_BYTES = 4 << 30

_LAYERS = "decoder.layers"


@dataclass(frozen=True)
class Weight:
    """One tensor of the exported model, not read yet."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]

    @property
    def size_bytes(self) -> int:
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


def main(arguments: Sequence[str] | None = None) -> int:
    """Export one checkpoint from the command line."""
    parser = argparse.ArgumentParser(description="Export a checkpoint as a Hugging Face Llama.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("step", type=int)
    options = parser.parse_args(arguments)
    try:
        print(export_checkpoint(RunDir(options.run_dir.absolute()), options.step))
    except OverlandError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return EXIT_OK


def export_checkpoint(run: RunDir, step: int, *, max_shard_bytes: int = MAX_SHARD_BYTES) -> Path:
    """Export the checkpoint of `step`, unless it was exported before; returns the model's folder."""
    evaluation = run.evaluation(step)
    target = evaluation.model_dir
    if evaluation.export() is not None:
        return target
    started_at = time.time()
    identity = run.checkpoint(step).identity()  # before anything is read that might be replaced
    with committed_checkpoint(run, step) as (files, marker):
        manifest = _manifest_of(run, marker, step)
        model = ModelConfig.model_validate(marker.model)
        weights = llama_weights(CheckpointReader(files, marker), model, manifest.vocab_size)
        with _replacing(target) as folder:
            write_json(folder / "config.json", llama_config(model, manifest, weights[0].dtype))
            write_json(folder / "generation_config.json", generation_config(manifest))
            copy_tokenizer(run.tokenizer_dir, folder)
            write_weights(folder, weights, max_shard_bytes)
    record = ExportRecord(checkpoint=identity or "", started_at=started_at, ended_at=time.time())
    write_record(evaluation.export_path, record)
    return target


def _manifest_of(run: RunDir, marker: CommitMarker, step: int) -> DataManifest:
    manifest = run.manifest()
    if manifest is None:
        raise CorpusError(f"{run.manifest_path} is missing or broken: prepare the data again")
    if marker.tokenizer_sha256 != manifest.tokenizer_sha256:
        raise CheckpointError(
            f"{run.checkpoint(step).path} was trained with another tokenizer than that of "
            f"{run.data_dir}"
        )
    return manifest


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A new folder, renamed to `target` when the block is done with it; nothing is left if it fails."""
    for left_behind in target.parent.glob(f"{target.name}.tmp-*"):
        shutil.rmtree(left_behind)  # by an export that was killed
    folder = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
        if target.exists():
            shutil.rmtree(target)  # of an earlier checkpoint
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sync_directory(target.parent)


# --- weights --------------------------------------------------------------------------------------


def llama_weights(reader: CheckpointReader, model: ModelConfig, vocab_size: int) -> list[Weight]:
    """All tensors of the Llama, in transformers' names and shapes."""
    hidden, padded_vocab = model.hidden_size, reader.shape("output_layer.weight")[0]
    if padded_vocab < vocab_size:
        raise CheckpointError(
            f"the checkpoint has {padded_vocab} rows for a vocabulary of {vocab_size}"
        )

    def whole(name: str, source: str, shape: tuple[int, ...]) -> Weight:
        return Weight(name, shape, reader.dtype(source), lambda: reader.read(source)[: shape[0]])

    return [
        whole(
            "model.embed_tokens.weight", "embedding.word_embeddings.weight", (vocab_size, hidden)
        ),
        *(w for layer in range(model.num_layers) for w in _layer_weights(reader, model, layer)),
        whole("model.norm.weight", "decoder.final_layernorm.weight", (hidden,)),
        whole("lm_head.weight", "output_layer.weight", (vocab_size, hidden)),
    ]


def _layer_weights(reader: CheckpointReader, model: ModelConfig, layer: int) -> Iterator[Weight]:
    hidden, ffn, heads = model.hidden_size, model.ffn_hidden_size, model.num_attention_heads
    groups, head = model.num_query_groups, hidden // heads

    def part(
        name: str, source: str, shape: tuple[int, ...], cut: Callable[[torch.Tensor], torch.Tensor]
    ) -> Weight:
        source = f"{_LAYERS}.{source}"

        def read() -> torch.Tensor:
            return cut(reader.read(source, layer)).reshape(shape)

        return Weight(f"model.layers.{layer}.{name}", shape, reader.dtype(source), read)

    def grouped(tensor: torch.Tensor) -> torch.Tensor:
        # Each query group has its queries' rows, then its key's, then its value's.
        return tensor.view(groups, heads // groups + 2, head, hidden)

    norm, qkv = "self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_qkv.weight"
    fc1 = "mlp.linear_fc1.weight"  # the gate's rows, then the other projection's
    yield part("input_layernorm.weight", norm, (hidden,), _all)
    yield part("self_attn.q_proj.weight", qkv, (hidden, hidden), lambda t: grouped(t)[:, :-2])
    yield part("self_attn.k_proj.weight", qkv, (groups * head, hidden), lambda t: grouped(t)[:, -2])
    yield part("self_attn.v_proj.weight", qkv, (groups * head, hidden), lambda t: grouped(t)[:, -1])
    yield part(
        "self_attn.o_proj.weight", "self_attention.linear_proj.weight", (hidden, hidden), _all
    )
    yield part(
        "post_attention_layernorm.weight", "mlp.linear_fc1.layer_norm_weight", (hidden,), _all
    )
    yield part("mlp.gate_proj.weight", fc1, (ffn, hidden), lambda t: t[:ffn])
    yield part("mlp.up_proj.weight", fc1, (ffn, hidden), lambda t: t[ffn:])
    yield part("mlp.down_proj.weight", "mlp.linear_fc2.weight", (hidden, ffn), _all)


def _all(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def write_weights(folder: Path, weights: list[Weight], max_shard_bytes: int) -> None:
    """Write the tensors: one file, or several with an index when they are larger than a shard."""
    shards = _shards(weights, max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        several = f"-{number:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
        path = folder / f"model{several}.safetensors"
        tensors = {weight.name: weight.read().contiguous() for weight in shard}
        save_file(tensors, path, metadata={"format": "pt"})
        sync_file(path)
        weight_map |= dict.fromkeys(tensors, path.name)
    if len(shards) > 1:
        size_bytes = sum(weight.size_bytes for weight in weights)
        index = {"metadata": {"total_size": size_bytes}, "weight_map": weight_map}
        write_json(folder / "model.safetensors.index.json", index)


def _shards(weights: list[Weight], max_bytes: int) -> list[list[Weight]]:
    shards: list[list[Weight]] = [[]]
    size_bytes = 0
    for weight in weights:
        if shards[-1] and size_bytes + weight.size_bytes > max_bytes:
            shards.append([])
            size_bytes = 0
        shards[-1].append(weight)
        size_bytes += weight.size_bytes
    return shards


# --- beside the weights ---------------------------------------------------------------------------


def llama_config(model: ModelConfig, manifest: DataManifest, dtype: torch.dtype) -> dict[str, Any]:
    """config.json: what transformers' LlamaConfig reads."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": manifest.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.hidden_size // model.num_attention_heads,
        "hidden_act": "silu",
        "max_position_embeddings": model.sequence_length,
        "rms_norm_eps": model.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base},
        "initializer_range": model.init_std,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": str(dtype).removeprefix("torch."),
        **generation_config(manifest),
    }


def generation_config(manifest: DataManifest) -> dict[str, Any]:
    """generation_config.json: one token ends a text and begins the next."""
    return {"bos_token_id": manifest.end_of_text_id, "eos_token_id": manifest.end_of_text_id}


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer's files beside the weights."""
    if not (source / "tokenizer.json").is_file():
        raise CorpusError(f"{source / 'tokenizer.json'} is missing: prepare the data again")
    for path in sorted(source.iterdir()):
        if path.is_file() and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
            sync_file(folder / path.name)


if __name__ == "__main__":
    sys.exit(main())
