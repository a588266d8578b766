"""Checkpoints in storage as local folders: fetched once, whole, and removed when nobody needs them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from s3_server import BUCKET, S3Server
from safetensors.torch import load_file
from stored_checkpoints import ROOT, commit, end, start_python, wait_for_line

from configs.errors import CheckpointError
from configs.records import CommitMarker, DataManifest, SplitRecord
from configs.rundir import COMMIT_MARKER_NAME, CheckpointDir, RunDir, write_record
from configs.schema import ModelConfig
from tasks.train.staging import STAGED, committed_checkpoint, remove_unused, staged
from tasks.train.storage import open_storage

URL = f"s3://{BUCKET}/run/step_00000010-001"

STAGE = """
import sys
from pathlib import Path
from configs.rundir import RunDir
from tasks.train.staging import staged
checkpoint = RunDir(Path(sys.argv[1])).checkpoint(10)
with staged(checkpoint, checkpoint.marker()) as folder:
    print("staged", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def marker_of(checkpoint: CheckpointDir) -> CommitMarker:
    marker = checkpoint.marker()
    assert marker is not None
    return marker


def fetched(s3: S3Server) -> list[str]:
    """Names of the files that were read, in order."""
    gets = [request.split()[1] for request in s3.requests if request.startswith("GET")]
    return sorted(path.rpartition("/")[2] for path in gets if "/run/" in path)


FILES = [".metadata", "__0_0.distcp", "common.pt"]


def test_a_local_checkpoint_is_its_own_folder(run: RunDir) -> None:
    checkpoint = commit(run, 10)
    before = sorted(checkpoint.path.iterdir())
    with staged(checkpoint, marker_of(checkpoint)) as folder:
        assert folder == checkpoint.path
    assert sorted(checkpoint.path.iterdir()) == before
    assert not (run.checkpoints_dir / STAGED).exists()


def test_files_are_fetched_and_removed_afterwards(run: RunDir, s3: S3Server) -> None:
    checkpoint = commit(run, 10, storage=URL)
    with committed_checkpoint(run, 10) as (folder, marker):
        assert folder.is_relative_to(run.checkpoints_dir / STAGED)
        for name in marker.files:
            assert (folder / name).read_bytes() == open_storage(URL, folder).read_bytes(name)
    assert list((run.checkpoints_dir / STAGED).iterdir()) == []
    assert [path.name for path in checkpoint.path.iterdir()] == [COMMIT_MARKER_NAME]


def test_who_comes_while_others_use_them_fetches_nothing(run: RunDir, s3: S3Server) -> None:
    checkpoint = commit(run, 10, storage=URL)
    user = start_python(STAGE, str(run.path))
    try:
        wait_for_line(user, "staged")
        s3.requests.clear()
        with staged(checkpoint, marker_of(checkpoint)) as folder:
            pass
        assert fetched(s3) == []
        remove_unused(run)
        assert folder.is_dir()  # the other one still uses it
    finally:
        end(user)
    remove_unused(run)
    assert not folder.exists()


def test_what_a_killed_one_left_is_used_when_it_is_whole(run: RunDir, s3: S3Server) -> None:
    checkpoint = commit(run, 10, storage=URL)
    user = start_python(STAGE, str(run.path))
    wait_for_line(user, "staged")
    end(user)
    folder = next(path for path in (run.checkpoints_dir / STAGED).iterdir() if path.is_dir())
    (folder / "common.pt").write_bytes(bytes(1000))  # of the right size
    (folder / "__0_0.distcp").unlink()
    (folder / ".__0_0.distcp.12345678.tmp").write_bytes(b"half")
    s3.requests.clear()
    with staged(checkpoint, marker_of(checkpoint)) as again:
        assert again == folder
        assert fetched(s3) == ["__0_0.distcp", "common.pt"]
        assert sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock")) == FILES
    assert not folder.exists()


def together(size: int, work: Callable[[int, Callable[[str], str]], None]) -> None:
    """Run `work` as each of `size` ranks, in threads that agree like ranks do."""
    barrier, problems = threading.Barrier(size, timeout=60), [""] * size

    def rank_of(rank: int) -> None:
        def agree(problem: str) -> str:
            problems[rank] = problem
            barrier.wait()
            return "; ".join(filter(None, problems))

        work(rank, agree)

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_ranks_share_the_work(run: RunDir, s3: S3Server) -> None:
    checkpoint = commit(run, 10, storage=URL)
    seen: list[list[str]] = []

    def work(rank: int, agree: Callable[[str], str]) -> None:
        marker = marker_of(checkpoint)
        with staged(checkpoint, marker, rank=rank, size=2, agree=agree) as folder:
            seen.append(sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock")))

    together(2, work)
    assert seen == [FILES, FILES]
    assert fetched(s3) == FILES
    assert list((run.checkpoints_dir / STAGED).iterdir()) == []


def test_all_ranks_learn_what_one_could_not_fetch(run: RunDir, s3: S3Server) -> None:
    checkpoint = commit(run, 10, storage=URL)
    open_storage(URL, run.path).remove("common.pt")
    told: list[str] = []

    def work(rank: int, agree: Callable[[str], str]) -> None:
        try:
            with staged(checkpoint, marker_of(checkpoint), rank=rank, size=2, agree=agree):
                pass
        except CheckpointError as error:
            told.append(str(error))

    together(2, work)
    assert len(told) == 2
    assert told[0] == told[1]
    assert told[0].startswith(f"{URL}/common.pt could not be read: no such bucket or file")
    assert list((run.checkpoints_dir / STAGED).iterdir()) == []


def test_a_damaged_file_in_storage_is_refused(run: RunDir, s3: S3Server) -> None:
    checkpoint = commit(run, 10, storage=URL)
    with open_storage(URL, run.path).write("common.pt") as file:
        file.write(bytes(1000))
    message = r"common\.pt is corrupt: its SHA-256 is not the recorded one"
    with pytest.raises(CheckpointError, match=message), staged(checkpoint, marker_of(checkpoint)):
        pass


def test_a_name_that_leads_elsewhere_is_refused(run: RunDir, s3: S3Server) -> None:
    checkpoint = commit(run, 10, storage=URL)
    marker = marker_of(checkpoint)
    record = marker.files["common.pt"]
    bad = marker.model_copy(update={"files": {"../../../common.pt": record}})
    with (
        pytest.raises(CheckpointError, match="is no name of a checkpoint's file"),
        staged(checkpoint, bad),
    ):
        pass


# --- the export -----------------------------------------------------------------------------------

MODEL = ModelConfig(
    num_layers=2, hidden_size=16, ffn_hidden_size=24, num_attention_heads=4, num_query_groups=2,
    sequence_length=8,
)  # fmt: skip
VOCAB = 300


def save_model(folder: Path) -> dict[str, bytes]:
    """A random model under megatron-core's names, in torch's format, with metadata.json beside."""
    layers, hidden, ffn, head = MODEL.num_layers, MODEL.hidden_size, MODEL.ffn_hidden_size, 4
    qkv = hidden + 2 * MODEL.num_query_groups * head
    shapes = {
        "embedding.word_embeddings.weight": (384, hidden),
        "output_layer.weight": (384, hidden),
        "decoder.final_layernorm.weight": (hidden,),
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight": (layers, hidden),
        "decoder.layers.self_attention.linear_qkv.weight": (layers, qkv, hidden),
        "decoder.layers.self_attention.linear_proj.weight": (layers, hidden, hidden),
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": (layers, hidden),
        "decoder.layers.mlp.linear_fc1.weight": (layers, 2 * ffn, hidden),
        "decoder.layers.mlp.linear_fc2.weight": (layers, hidden, ffn),
    }
    generator = torch.Generator().manual_seed(1)
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepare(run: RunDir) -> None:
    split = SplitRecord(prefix="train", documents=1, tokens=1, sha256_bin="", sha256_idx="")
    manifest = DataManifest(
        fingerprint="", sources=[], documents_read=1, documents_empty=0, documents_duplicate=0,
        tokenizer_sha256="t", vocab_size=VOCAB, end_of_text_id=0, train=split,
        validation=split, bytes_per_token=1.0, created_at=0.0, duration_s=0.0,
    )  # fmt: skip
    write_record(run.manifest_path, manifest)
    run.tokenizer_dir.mkdir()
    (run.tokenizer_dir / "tokenizer.json").write_text("{}")


def commit_model(run: RunDir, files: dict[str, bytes], storage: str | None) -> None:
    prepare(run)
    checkpoint = commit(run, 10, storage=storage, files=files)
    marker = marker_of(checkpoint).model_copy(
        update={"model": MODEL.model_dump(mode="json"), "tokenizer_sha256": "t"}
    )
    write_record(checkpoint.path / COMMIT_MARKER_NAME, marker)


def export(run: RunDir) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tasks.train.export", str(run.path), "10"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_an_export_from_s3_is_the_one_from_a_folder(
    run: RunDir, s3: S3Server, tmp_path: Path
) -> None:
    files = save_model(tmp_path / "model")
    local = RunDir(tmp_path / "local")
    commit_model(local, files, None)
    commit_model(run, files, URL)
    s3.inject("503", method="GET", path="__0_0.distcp", times=2)
    s3.inject("truncate", method="GET", path="__0_0.distcp", times=1)
    for each in (local, run):
        done = export(each)
        assert done.returncode == 0, done.stderr
    ours, theirs = (each.evaluation(10).model_dir for each in (run, local))
    assert sorted(p.name for p in ours.iterdir()) == sorted(p.name for p in theirs.iterdir())
    for path in ours.iterdir():
        assert path.read_bytes() == (theirs / path.name).read_bytes()
    assert len(load_file(ours / "model.safetensors")) == 3 + 9 * MODEL.num_layers
    assert json.loads((run.evaluation(10).export_path).read_text())["checkpoint"]
    assert list((run.checkpoints_dir / STAGED).iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_an_export_of_a_checkpoint_that_storage_has_lost_is_one_sentence(
    run: RunDir, s3: S3Server, tmp_path: Path
) -> None:
    commit_model(run, save_model(tmp_path / "model"), URL)
    open_storage(URL, run.path).remove(".metadata")
    done = export(run)
    assert done.returncode == 1
    assert done.stderr.strip().startswith(f"{URL}/.metadata could not be read: no such bucket")
    assert len(done.stderr.strip().splitlines()) == 1
