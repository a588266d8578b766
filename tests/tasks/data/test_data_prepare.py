"""The whole of prepare: files that Megatron reads, reuse, crashes, and what a bad corpus leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import psutil
import pytest
from data_corpora import english_document, make_config, write_jsonl
from tokenizers import Tokenizer

from configs.errors import CorpusError, InputError, RunFailedError
from configs.files import sha256_of_file
from configs.records import DataManifest
from configs.rundir import RunDir
from configs.schema import RunConfig
from tasks.data import corpus as corpus_module
from tasks.data import megatron as megatron_module
from tasks.data.prepare import prepare

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch and megatron-core warn about themselves when imported
    from megatron.core.datasets.indexed_dataset import IndexedDataset

DATA_FILES = ("train.bin", "train.idx", "validation.bin", "validation.idx")
MARK = "OVERLAND_TEST_PREPARE"
PROJECT_ROOT = Path(__file__).parents[3]


def run_prepare(config: RunConfig, data_dir: Path) -> tuple[DataManifest, list[str]]:
    reports: list[str] = []
    return prepare(config, data_dir, report=reports.append), reports


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def hashes(data_dir: Path) -> dict[str, str]:
    """All prepared files but the two that hold times."""
    files = [path for path in data_dir.rglob("*") if path.is_file()]
    kept = [path for path in files if path.name not in ("manifest.json", "sources.json")]
    return {str(path.relative_to(data_dir)): sha256_of_file(path) for path in kept}


def copy_of(data_dir: Path, run_path: Path) -> Path:
    run_path.mkdir(parents=True)
    return Path(shutil.copytree(data_dir, run_path / "data"))


def decoded(data_dir: Path, name: str, manifest: DataManifest) -> list[str]:
    tokenizer = Tokenizer.from_file(str(data_dir / "tokenizer" / "tokenizer.json"))
    dataset = IndexedDataset(str(data_dir / name))
    texts = []
    for tokens in dataset:
        assert tokens[-1] == manifest.end_of_text_id
        assert manifest.end_of_text_id not in tokens[:-1]
        texts.append(tokenizer.decode(tokens[:-1].tolist(), skip_special_tokens=False))
    assert len(dataset.document_indices) == len(texts) + 1
    return texts


def test_megatron_reads_back_the_text(
    prepared: tuple[Path, DataManifest], documents: list[str]
) -> None:
    data_dir, manifest = prepared
    train = decoded(data_dir, "train", manifest)
    validation = decoded(data_dir, "validation", manifest)
    assert sorted(train + validation) == sorted(documents)
    assert (manifest.train.documents, manifest.validation.documents) == (
        len(train),
        len(validation),
    )


def test_manifest_states_what_is_there(
    prepared: tuple[Path, DataManifest], corpus_file: Path, documents: list[str]
) -> None:
    data_dir, manifest = prepared
    assert RunDir(data_dir.parent).manifest() == manifest
    (source,) = manifest.sources
    assert (source.name, source.documents) == (str(corpus_file), len(documents))
    assert source.size_bytes == corpus_file.stat().st_size
    assert source.sha256 == sha256_of_file(corpus_file)
    for split in (manifest.train, manifest.validation):
        tokens = np.fromfile(data_dir / f"{split.prefix}.bin", dtype=np.uint16)
        assert len(tokens) == split.tokens and tokens.max() < manifest.vocab_size == 400
        assert split.sha256_bin == sha256_of_file(data_dir / f"{split.prefix}.bin")
        assert split.sha256_idx == sha256_of_file(data_dir / f"{split.prefix}.idx")
    assert manifest.tokenizer_sha256 == sha256_of_file(data_dir / "tokenizer" / "tokenizer.json")
    assert 1 < manifest.bytes_per_token < 8
    assert names_in(data_dir.parent) == ["data"]
    assert not (data_dir / "work").exists()


def test_number_of_workers_and_shards_does_not_change_the_result(
    tmp_path: Path,
    corpus_file: Path,
    prepared: tuple[Path, DataManifest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(corpus_module, "SHARD_TEXT_BYTES", 10_000)
    manifest, _ = run_prepare(make_config(corpus_file, workers=2), tmp_path / "data")
    assert hashes(tmp_path / "data") == hashes(prepared[0])
    assert manifest.fingerprint == prepared[1].fingerprint


def test_spelt_out_end_of_text_does_not_end_a_document(tmp_path: Path) -> None:
    texts = [f"{english_document(i)} <|endoftext|> {english_document(i + 50)}" for i in range(40)]
    config = make_config(write_jsonl(tmp_path / "c.jsonl", texts))
    manifest, _ = run_prepare(config, tmp_path / "data")
    found = [decoded(tmp_path / "data", name, manifest) for name in ("train", "validation")]
    assert sorted(found[0] + found[1]) == sorted(texts)


def test_same_input_is_not_prepared_twice(
    run_path: Path, prepared: tuple[Path, DataManifest], corpus_file: Path
) -> None:
    data_dir = copy_of(prepared[0], run_path)
    moved = run_path / "moved.jsonl"
    shutil.copy(corpus_file, moved)
    manifest, reports = run_prepare(make_config(moved, workers=3), data_dir)
    assert manifest == prepared[1].model_copy(update={"config": manifest.config})
    assert manifest.config["data.paths"] == [str(moved)]
    assert RunDir(data_dir.parent).manifest() == manifest
    assert len(reports) == 1 and "prepared already" in reports[0]


def test_unchanged_sources_are_not_read_again(
    run_path: Path,
    prepared: tuple[Path, DataManifest],
    corpus_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data_dir = copy_of(prepared[0], run_path)

    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("tasks.data.fingerprint.sha256_of_file", refuse)
    assert run_prepare(make_config(corpus_file), data_dir)[0] == prepared[1]


@pytest.mark.parametrize("damage", ["shorter bin", "no idx", "no manifest", "broken manifest"])
def test_incomplete_data_is_not_taken_for_whole(
    run_path: Path,
    prepared: tuple[Path, DataManifest],
    corpus_file: Path,
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data_dir = copy_of(prepared[0], run_path)
    if damage == "shorter bin":
        os.truncate(data_dir / "train.bin", 100)
    elif damage == "no idx":
        (data_dir / "validation.idx").unlink()
    elif damage == "no manifest":
        (data_dir / "manifest.json").unlink()
    else:
        (data_dir / "manifest.json").write_text('{"fingerprint"')
    (data_dir / "sources.json").write_text("[1")

    def build(*arguments: object) -> DataManifest:
        raise NotImplementedError

    monkeypatch.setattr("tasks.data.prepare._build", build)
    with pytest.raises(NotImplementedError):
        run_prepare(make_config(corpus_file), data_dir)


@pytest.mark.slow
def test_changed_text_or_config_is_prepared_anew(tmp_path: Path, documents: list[str]) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", documents[:60])
    data_dir = tmp_path / "run" / "data"
    first, _ = run_prepare(make_config(corpus), data_dir)
    write_jsonl(corpus, documents[:61])
    second, _ = run_prepare(make_config(corpus), data_dir)
    third, _ = run_prepare(make_config(corpus, tokenizer={"vocab_size": 300}), data_dir)
    assert len({first.fingerprint, second.fingerprint, third.fingerprint}) == 3
    assert second.documents_read == 61 and third.vocab_size == 300
    assert RunDir(tmp_path / "run").manifest() == third
    assert names_in(tmp_path / "run") == ["data"]


def test_given_tokenizer_is_used_and_copied(
    tmp_path: Path, prepared: tuple[Path, DataManifest], corpus_file: Path
) -> None:
    config = make_config(corpus_file, tokenizer={"path": str(prepared[0] / "tokenizer")})
    manifest, _ = run_prepare(config, tmp_path / "data")
    assert manifest.fingerprint != prepared[1].fingerprint
    assert [hashes(tmp_path / "data")[name] for name in DATA_FILES] == [
        hashes(prepared[0])[name] for name in DATA_FILES
    ]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["corpus", "parts"])
def test_killed_prepare_is_cleaned_and_redone(
    run_path: Path, prepared: tuple[Path, DataManifest], corpus_file: Path, moment: str
) -> None:
    data_dir = run_path / "data"
    process = _start_prepare(corpus_file, data_dir)
    _kill_when_there_is(process, run_path, moment)
    _wait_for_children_to_end(run_path)
    assert not data_dir.exists() and len(names_in(run_path)) == 1
    run_prepare(make_config(corpus_file), data_dir)
    assert hashes(data_dir) == hashes(prepared[0])
    assert names_in(run_path) == ["data"]


SLOW_PREPARE = """
import sys
from pathlib import Path
from data_corpora import make_config
from tasks.data import corpus, megatron, prepare

corpus.SHARD_TEXT_BYTES = 1_000
if __name__ == "__main__":
    config = make_config(sys.argv[1], workers=2)
    prepare.prepare(config, Path(sys.argv[2]), report=lambda message: None)
"""


def _start_prepare(corpus_file: Path, data_dir: Path) -> subprocess.Popen[bytes]:
    paths = [str(PROJECT_ROOT), str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), MARK: str(data_dir.parent)}
    command = [sys.executable, "-c", SLOW_PREPARE, str(corpus_file), str(data_dir)]
    return subprocess.Popen(command, env=environment)


def _kill_when_there_is(process: subprocess.Popen[bytes], run_path: Path, name: str) -> None:
    """Kill prepare itself, not its children, when a file of that name appears."""
    deadline = time.monotonic() + 240
    while not any(run_path.rglob(f"{name}*")):
        assert process.poll() is None, "prepare ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    process.wait()


def _wait_for_children_to_end(run_path: Path) -> None:
    deadline = time.monotonic() + 120
    while left := [process for process in psutil.process_iter() if _is_marked(process, run_path)]:
        if time.monotonic() > deadline:
            for process in left:
                process.kill()
            pytest.fail(f"still running: {left}")
        time.sleep(0.05)


def _is_marked(process: psutil.Process, run_path: Path) -> bool:
    try:
        return process.environ().get(MARK) == str(run_path)
    except psutil.Error:
        return False


def test_worker_that_fails_ends_prepare_and_leaves_nothing(
    run_path: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron_module, "TOKENIZER_FILE", "absent.json")
    with pytest.raises(
        RunFailedError, match=r"a tokenizing process failed with exit code 1: .*absent"
    ):
        run_prepare(make_config(corpus_file), run_path / "data")
    assert names_in(run_path) == []


def test_worker_that_is_killed_ends_prepare(
    run_path: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = megatron_module._start_worker

    def start_and_kill(*arguments: object) -> object:
        process = start(*arguments)  # type: ignore[arg-type]
        if started:
            process.kill()
        started.append(process)
        return process

    monkeypatch.setattr(megatron_module, "_start_worker", start_and_kill)
    monkeypatch.setattr(corpus_module, "SHARD_TEXT_BYTES", 10_000)
    with pytest.raises(RunFailedError, match="was ended by SIGKILL"):
        run_prepare(make_config(corpus_file, workers=2), run_path / "data")
    assert len(started) == 2 and all(process.poll() is not None for process in started)
    assert not any(_group_lives(process.pid) for process in started), "a forked process was left"
    assert names_in(run_path) == []


def _group_lives(group: int) -> bool:
    members = [process for process in psutil.process_iter() if _group_of(process) == group]
    _, left = psutil.wait_procs(members, timeout=10)
    return any(process.status() != psutil.STATUS_ZOMBIE for process in left)


def _group_of(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return 0


def test_corpus_too_small_for_the_sequence_length(run_path: Path, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", [f"short {i}" for i in range(4)])
    with pytest.raises(CorpusError, match=r"the corpus is too small: \d+ tokens in 3 documents"):
        run_prepare(make_config(corpus, sequence_length=512), run_path / "data")
    assert names_in(run_path) == []


def test_validation_split_too_small(run_path: Path, tmp_path: Path) -> None:
    texts = [english_document(i) for i in range(20)]
    corpus = write_jsonl(tmp_path / "c.jsonl", texts)
    config = make_config(corpus, sequence_length=512, validation_fraction=0.0001)
    with pytest.raises(CorpusError, match=r"the validation split is too small: .* 1 documents"):
        run_prepare(config, run_path / "data")
    assert names_in(run_path) == []


@pytest.mark.parametrize("content", [b"", b'{"text": "a"}\n{"text": "caf\xe9"}\n', b"{}\n", b"\0"])
def test_bad_corpus_leaves_nothing_and_keeps_what_was_there(
    run_path: Path, prepared: tuple[Path, DataManifest], tmp_path: Path, content: bytes
) -> None:
    data_dir = copy_of(prepared[0], run_path)
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(InputError):
        run_prepare(make_config(tmp_path / "bad.jsonl"), data_dir)
    assert RunDir(run_path).manifest() == prepared[1]
    assert names_in(run_path) == ["data"]
