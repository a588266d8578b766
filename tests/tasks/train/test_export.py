"""Export: the Hugging Face Llama computes what the Megatron model does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import load_file
from training_jobs import torchrun

from configs.errors import CheckpointError
from configs.files import sha256_of_file
from configs.records import CommitMarker, DataManifest, FileRecord, SplitRecord
from configs.rundir import COMMIT_MARKER_NAME, CheckpointDir, RunDir, write_record
from tasks.train.checkpoint_read import CheckpointReader
from tasks.train.export import export_checkpoint

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SAVE = Path(__file__).with_name("random_checkpoint.py")
LOAD_LLAMA = Path(__file__).with_name("load_llama.py")
STEP = 5  # of random_checkpoint.py
VOCAB, PADDED_VOCAB = 300, 384
MODEL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 176,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "sequence_length": 48,
    "rotary_base": 50000.0,
    "norm_epsilon": 1e-6,
}
STACKED = (
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_proj.weight",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc2.weight",
)


def save_random_checkpoint(folder: Path, **parallel: int) -> RunDir:
    """Run random_checkpoint.py on two processes, in a new run directory."""
    run = RunDir(folder)
    split = SplitRecord(prefix="train", documents=1, tokens=1, sha256_bin="", sha256_idx="")
    manifest = DataManifest(
        fingerprint="", sources=[], documents_read=1, documents_empty=0, documents_duplicate=0,
        tokenizer_sha256="the tokenizer", vocab_size=VOCAB, end_of_text_id=0, train=split,
        validation=split, bytes_per_token=1.0, created_at=0.0, duration_s=0.0,
    )  # fmt: skip
    write_record(run.manifest_path, manifest)
    config = run.path / "model.json"
    config.write_text(
        json.dumps({"model": MODEL, "parallel": parallel, "launcher": {"cpu_threads": 1}})
    )
    start = torchrun(2, run.path / "rendezvous")
    done = run_python(*start, str(SAVE), str(run.path), str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    run.tokenizer_dir.mkdir()
    (run.tokenizer_dir / "tokenizer.json").write_text("{}")
    (run.tokenizer_dir / "tokenizer_config.json").write_text('{"tokenizer_class": "x"}')
    return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A checkpoint of two tensor-parallel processes."""
    return save_random_checkpoint(tmp_path_factory.mktemp("saved"), tensor=2)


@pytest.fixture
def run(saved: RunDir, tmp_path: Path) -> RunDir:
    """A copy of it for one test."""
    shutil.copytree(saved.path, tmp_path / "run")
    return RunDir(tmp_path / "run")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, saved: RunDir) -> dict[str, dict[str, Any]]:
    """What transformers makes of exported models, by how they were saved or exported."""
    several = RunDir(tmp_path_factory.mktemp("several") / "run")
    shutil.copytree(saved.path, several.path)
    pipeline = save_random_checkpoint(tmp_path_factory.mktemp("pipeline"), pipeline=2)
    arguments: list[str] = []
    whole = RunDir(tmp_path_factory.mktemp("whole") / "run")
    shutil.copytree(saved.path, whole.path)
    for run, shard_bytes in ((whole, 1 << 30), (several, 200_000), (pipeline, 1 << 30)):
        model_dir = export_checkpoint(run, STEP, max_shard_bytes=shard_bytes)
        arguments += [str(model_dir), str(run.path / "logits.pt")]
    done = run_python(str(LOAD_LLAMA), *arguments)
    assert done.returncode == 0, done.stderr
    return dict(zip(("tensor", "several", "pipeline"), json.loads(done.stdout), strict=True))


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["tensor", "several", "pipeline"])
def test_logits_are_those_of_the_megatron_model(
    how: str, loaded: dict[str, dict[str, Any]]
) -> None:
    model = loaded[how]
    print(f"largest difference of a logit ({how}): {model['difference']:.2e}")
    assert model["not_loaded"] == []
    assert model["vocab"] == [VOCAB, PADDED_VOCAB]
    assert model["std"] > 0.5  # a model that says something
    assert model["difference"] < 1e-4


def test_config_is_that_of_the_model(loaded: dict[str, dict[str, Any]]) -> None:
    config = loaded["tensor"]["config"]
    assert {
        "vocab_size": VOCAB,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 48,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "eos_token_id": 0,
    }.items() <= config.items()
    assert loaded["tensor"]["end_of_text"] == 0


def test_large_model_is_written_in_several_files(run: RunDir) -> None:
    model_dir = export_checkpoint(run, STEP, max_shard_bytes=200_000)
    files = sorted(model_dir.glob("*.safetensors"))
    assert len(files) > 2
    assert all(file.stat().st_size < 220_000 for file in files)
    index = json.loads((model_dir / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {file.name for file in files}
    assert len(index["weight_map"]) == 4 * 9 + 3


def test_folder_has_the_tokenizer(run: RunDir) -> None:
    model_dir = export_checkpoint(run, STEP)
    assert model_dir == run.path / "evaluations" / "step_00000005" / "model"
    assert sorted(path.name for path in model_dir.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert sorted(path.name for path in model_dir.parent.iterdir()) == ["export.json", "model"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (model_dir / name).read_bytes() == (run.tokenizer_dir / name).read_bytes()


def test_command_says_where_or_why(run: RunDir) -> None:
    code = (
        "import sys; from tasks.train.export import main;"
        "codes = [main([sys.argv[1], step]) for step in ('5', '6')];"
        "assert not {'megatron', 'transformers', 'prefect'} & set(sys.modules);"
        "sys.exit(codes != [0, 1])"
    )
    done = run_python("-W", "error", "-c", code, str(run.path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{run.evaluation(STEP).model_dir}\n"
    assert done.stderr.endswith("is no committed checkpoint: committed steps are 5\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_bf16_weights_stay_bf16(run: RunDir) -> None:
    """As GPUs train: the same checkpoint, rounded to bf16."""
    folder, names = checkpoint(run).path, [
        "embedding.word_embeddings.weight",
        *(f"decoder.layers.{name}" for name in STACKED),
        "decoder.final_layernorm.weight",
        "output_layer.weight",
    ]  # fmt: skip
    marker = marker_of(run)
    reader = CheckpointReader(folder, marker)
    weights = {name: reader.read(name).bfloat16() for name in names}
    shutil.rmtree(folder)
    torch.distributed.checkpoint.save(weights, checkpoint_id=folder, no_dist=True)
    commit(run, marker)
    model_dir = export_checkpoint(run, STEP)
    assert json.loads((model_dir / "config.json").read_text())["dtype"] == "bfloat16"
    exported = load_file(model_dir / "model.safetensors")
    assert {tensor.dtype for tensor in exported.values()} == {torch.bfloat16}
    gate = weights["decoder.layers.mlp.linear_fc1.weight"][2, :176]
    assert torch.equal(exported["model.layers.2.mlp.gate_proj.weight"], gate)


def test_exported_model_is_left_alone(run: RunDir) -> None:
    model_dir = export_checkpoint(run, STEP)
    before = model_dir.stat()
    assert export_checkpoint(run, STEP) == model_dir
    assert model_dir.stat().st_ino == before.st_ino


def test_model_of_an_earlier_save_of_the_step_is_replaced(run: RunDir) -> None:
    model_dir = export_checkpoint(run, STEP)
    (model_dir / "model.safetensors").write_bytes(b"older weights")
    commit(run, marker_of(run).model_copy(update={"attempt": 2}))
    assert run.evaluation(STEP).export() is None
    assert export_checkpoint(run, STEP) == model_dir
    assert (model_dir / "model.safetensors").stat().st_size > 1000
    export = run.evaluation(STEP).export()
    assert export is not None and export.checkpoint == checkpoint(run).identity()


def test_model_without_record_of_its_checkpoint_is_exported_again(run: RunDir) -> None:
    """A flow that was killed between the two."""
    model_dir = export_checkpoint(run, STEP)
    (model_dir / "model.safetensors").write_bytes(b"older weights")
    run.evaluation(STEP).export_path.unlink()
    export_checkpoint(run, STEP)
    assert (model_dir / "model.safetensors").stat().st_size > 1000


def test_what_a_killed_export_left_is_removed(run: RunDir) -> None:
    left_behind = run.evaluation(STEP).path / "model.tmp-1"
    left_behind.mkdir(parents=True)
    (left_behind / "model.safetensors").write_bytes(b"half")
    model_dir = export_checkpoint(run, STEP)
    assert not left_behind.exists()
    assert (model_dir / "model.safetensors").stat().st_size > 4


def test_layers_are_read_one_at_a_time(run: RunDir) -> None:
    reader = CheckpointReader(run.checkpoint(STEP).path, marker_of(run))
    name = "decoder.layers.mlp.linear_fc2.weight"
    whole = reader.read(name)
    assert whole.shape == (4, 64, 176)
    for layer in range(4):
        assert torch.equal(reader.read(name, layer), whole[layer])


# --- refusals -------------------------------------------------------------------------------------


def refusal(run: RunDir, step: int = STEP) -> str:
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(run, step)
    assert not list(run.path.glob(f"evaluations/step_{step:08d}/model*"))
    return str(caught.value)


def checkpoint(run: RunDir) -> CheckpointDir:
    return run.checkpoint(STEP)


def marker_of(run: RunDir) -> CommitMarker:
    marker = checkpoint(run).marker()
    assert marker is not None
    return marker


def commit(run: RunDir, marker: CommitMarker) -> None:
    """Write the marker again, for the files as they are."""
    folder = checkpoint(run).path
    files = {
        path.name: FileRecord(size_bytes=path.stat().st_size, sha256=sha256_of_file(path))
        for path in folder.iterdir()
        if path.name != COMMIT_MARKER_NAME
    }
    write_record(folder / COMMIT_MARKER_NAME, marker.model_copy(update={"files": files}))


def test_uncommitted_checkpoint(run: RunDir) -> None:
    (checkpoint(run).path / "COMMITTED.json").unlink()
    assert (
        refusal(run)
        == f"{checkpoint(run).path} is no committed checkpoint: committed steps are none"
    )


def test_damaged_commit_marker(run: RunDir) -> None:
    (checkpoint(run).path / "COMMITTED.json").write_text("{")
    assert refusal(run) == f"{checkpoint(run).path}/COMMITTED.json is damaged"


def test_step_without_checkpoint_names_those_there_are(run: RunDir) -> None:
    assert refusal(run, 6).endswith(
        "step_00000006 is no committed checkpoint: committed steps are 5"
    )


def test_file_of_another_size(run: RunDir) -> None:
    file = checkpoint(run).path / "__1_0.distcp"
    os.truncate(file, file.stat().st_size - 1)
    assert "__1_0.distcp has " in refusal(run)


def test_missing_file(run: RunDir) -> None:
    file = checkpoint(run).path / "__0_0.distcp"
    file.unlink()
    assert refusal(run) == f"{checkpoint(run).path} is damaged: __0_0.distcp is missing"


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "__1_0.distcp"])
def test_one_flipped_bit(run: RunDir, name: str) -> None:
    file = checkpoint(run).path / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert refusal(run).endswith(
        f"is damaged: {name} is corrupt: its SHA-256 is not the recorded one"
    )


def test_file_that_is_no_tensors(run: RunDir) -> None:
    file = checkpoint(run).path / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))
    commit(run, marker_of(run))
    assert "cannot be read from" in refusal(run)


def test_index_that_would_run_code(run: RunDir, tmp_path: Path) -> None:
    folder = checkpoint(run).path
    trap = tmp_path / "ran"
    size = (folder / ".metadata").stat().st_size
    pickle = f"cos\nmkdir\n(V{trap}\ntR.".encode()
    (folder / ".metadata").write_bytes(pickle + bytes(size - len(pickle)))
    commit(run, marker_of(run))
    assert "imports os.mkdir" in refusal(run)
    assert not trap.exists()


def test_tokenizer_of_another_run(run: RunDir) -> None:
    manifest = run.manifest()
    assert manifest is not None
    write_record(run.manifest_path, manifest.model_copy(update={"tokenizer_sha256": "other"}))
    assert "was trained with another tokenizer" in refusal(run)


def test_vocabulary_larger_than_the_model(run: RunDir) -> None:
    manifest = run.manifest()
    assert manifest is not None
    write_record(run.manifest_path, manifest.model_copy(update={"vocab_size": 385}))
    assert refusal(run) == "the checkpoint has 384 rows for a vocabulary of 385"


def test_failed_export_leaves_nothing(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tasks.train.export.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        export_checkpoint(run, STEP)
    assert list(run.evaluation(STEP).path.iterdir()) == []
