"""Models near their workers: copied once, checked, shared, removed; without room, read where they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from evaluation_setup import REPOSITORY

from configs.errors import ConfigError
from tasks.evaluate import staging
from tasks.evaluate.model_folder import check_model
from tasks.evaluate.staging import Staged, clear_unused, staged

IDENTITY = "a" * 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Files that look like a model with its weights in two formats."""
    folder = tmp_path / "model"
    (folder / "original").mkdir(parents=True)
    files = {"config.json": 40, "model.safetensors": 3 << 20, "pytorch_model.bin": 100}
    for name, size_bytes in {**files, "original/weights.pth": 10}.items():
        (folder / name).write_bytes(os.urandom(size_bytes))
    return folder


def copies(base: Path) -> list[str]:
    return sorted(path.name for path in base.glob("overland-*/models/*"))


def test_copy_is_whole_and_gone_with_its_last_user(tmp_path: Path, model: Path) -> None:
    base = tmp_path / "memory"
    base.mkdir()
    with staged(model, IDENTITY, places=[("memory", base)]) as copy:
        folder = Path(copy.path)
        assert copy.place == "memory"
        assert set(copy.sha256) == {"config.json", "model.safetensors"}
        for name in copy.sha256:
            assert (folder / name).read_bytes() == (model / name).read_bytes()
        with staged(model, IDENTITY, places=[("memory", base)]) as other:
            assert other == copy  # found there, not copied again
        assert (folder / "config.json").is_file()
    assert copies(base) == []


def test_what_nobody_holds_is_removed_by_the_next(tmp_path: Path, model: Path) -> None:
    """The precursor was killed, so the copy stayed."""
    base = tmp_path / "memory"
    left = base / f"overland-{os.getuid()}" / "models" / ("b" * 32)
    left.mkdir(parents=True)
    (left / "config.json").write_text("{}")
    left.with_suffix(".lock").touch()
    with staged(model, IDENTITY, places=[("memory", base)]):
        assert copies(base) == ["a" * 32, f"{'a' * 32}.lock"]
        clear_unused(base)
        assert copies(base) == ["a" * 32, f"{'a' * 32}.lock"]


def test_a_torn_copy_is_made_anew(tmp_path: Path, model: Path) -> None:
    base = tmp_path / "memory"
    torn = base / f"overland-{os.getuid()}" / "models" / IDENTITY[:32]
    torn.mkdir(parents=True)
    (torn / "model.safetensors").write_bytes(b"half")
    with staged(model, IDENTITY, places=[("memory", base)]) as copy:
        assert (Path(copy.path) / "model.safetensors").stat().st_size == 3 << 20


def test_without_room_the_disk_is_used_and_then_the_source(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for base in (memory, disk):
        base.mkdir()
    full = staging.shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    whole = staging.shutil.disk_usage

    def disk_usage(path: Path) -> object:
        return full if path.is_relative_to(memory) else whole(path)

    monkeypatch.setattr(staging.shutil, "disk_usage", disk_usage)
    said: list[str] = []
    places = [("memory", memory), ("other", disk)]
    with staged(model, IDENTITY, places=places, say=said.append) as copy:
        assert (copy.place, Path(copy.path).is_relative_to(disk)) == ("other", True)
    assert "is not copied to memory" in said[0]
    assert "has room for 1 MiB, the model has 3" in said[0]
    with staged(model, IDENTITY, places=places[:1], say=said.append) as copy:
        assert copy == Staged(path=str(model), place="source")
    assert said[-1] == f"the model is read from {model}"


def precursor_of(model: Path, identity: str, mib_per_s: float = 100) -> list[str]:
    rate = f"--mib-per-s={mib_per_s}"
    return [sys.executable, "-m", "tasks.evaluate.precursor", str(model), identity, rate]


def test_precursor_clears_up_when_its_starter_is_gone(model: Path) -> None:
    argv = precursor_of(model, "c" * 64)
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=REPOSITORY, stdin=pipe, stdout=pipe) as precursor:
        assert precursor.stdout is not None and precursor.stdin is not None
        copy = Staged.model_validate_json(precursor.stdout.readline())
        assert (Path(copy.path) / "config.json").is_file()
        precursor.stdin.close()
        assert precursor.wait() == 0
    assert not Path(copy.path).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
        (
            lambda folder: os.truncate(folder / "model.safetensors", 20_000),
            "is incomplete: it has 20000 bytes, its header says",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
        (
            lambda folder: (
                (folder / "model.safetensors").unlink(),
                (folder / "model.safetensors.index.json").write_text(
                    json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
                ),
            ),
            "model-00001-of-00002.safetensors is missing",
        ),
    ],
)
def test_incomplete_model_is_refused(
    tmp_path: Path, tiny_model: Path, change: object, words: str
) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(tiny_model, folder)
    check_model(folder)
    change(folder)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=words):
        check_model(folder)
