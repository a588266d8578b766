"""Wrong input: one clear sentence, exit code 2, nothing left behind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.flows.helpers import overland, tiny_config


def refused(result: Any, *words: str) -> None:
    """The command ended with exit code 2 and errors that hold all `words`."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert errors, result.stderr
    for word in words:
        assert word in result.stderr, f"{word!r} is not in: {result.stderr}"


# --- answered without Prefect ---------------------------------------------------------------------


def test_missing_config(tmp_path: Path) -> None:
    refused(overland("run", tmp_path / "no.yaml"), "no.yaml", "does not exist")


def test_malformed_config(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("train:\n  steps: [1, 2\nname: x\n")
    refused(overland("run", path), "config.yaml", "line")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.stepps=5", ["train.stepps", "train.steps"]),
        ("learning_rate=0.1", ["learning_rate", "train.learning_rate"]),
        ("train.steps=many", ["train.steps", "many"]),
        ("train.steps=-5", ["train.steps", "-5"]),
        ("parallel.data=3", ["parallel", "3", "2"]),
        ("parallel={tensor: 4, data: 1}", ["4"]),
        ("model.num_attention_heads=5", ["heads", "5"]),
        ("faults=[{kind: kill, step: 3, rank: 7}]", ["rank", "7"]),
        ("run_dir=/proc/overland", ["/proc"]),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, override: str, words: list[str]) -> None:
    config = tiny_config(tmp_path)
    refused(overland("run", config, override), *words)
    assert not (tmp_path / "run").exists()


def test_run_directory_below_a_file(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    refused(overland("run", config, f"run_dir={tmp_path}/file/run"), "file", "not a folder")


def test_a_folder_of_other_files_does_not_become_a_run_directory(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "paper.txt").write_text("mine")
    refused(overland("run", config, f"run_dir={folder}"), "papers", "not empty")
    assert [path.name for path in folder.iterdir()] == ["paper.txt"]


def test_a_run_directory_in_its_own_corpus(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    result = overland("run", config, f"data.paths=[{tmp_path}]")
    refused(result, "run_dir", "lies in the corpus folder")


def test_not_a_run_directory(tmp_path: Path) -> None:
    for command in ("status", "evaluate", "track"):
        refused(overland(command, tmp_path), str(tmp_path))


# --- found when the corpus is read ----------------------------------------------------------------


def _empty(path: Path) -> None:
    path.write_text("")


def _binary(path: Path) -> None:
    path.write_bytes(b'{"text": "a"}\n' + bytes(range(256)) * 8)


def _undecodable(path: Path) -> None:
    path.write_bytes(b'{"text": "caf\xe9 au lait"}\n')


def _malformed(path: Path) -> None:
    path.write_text('{"text": "fine"}\n{"text": broken\n')


def _other_field(path: Path) -> None:
    path.write_text('{"body": "fine"}\n')


def _too_small(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": f"word {i}"}) + "\n" for i in range(4)))


def _cut_off(path: Path) -> None:
    whole = gzip.compress(b'{"text": "a sentence of some length"}\n' * 5000)
    path.with_suffix(".jsonl.gz").write_bytes(whole[: len(whole) // 2])
    path.unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_empty, ["corpus"]),
        (_binary, ["corpus.jsonl"]),
        (_undecodable, ["corpus.jsonl", "UTF-8"]),
        (_malformed, ["corpus.jsonl:2"]),
        (_other_field, ["text", "body"]),
        (_too_small, ["sequence_length"]),
        (_cut_off, ["corpus.jsonl.gz"]),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_corpus_that_cannot_be_used(
    tmp_path: Path, spoil: Callable[[Path], None], words: list[str]
) -> None:
    config = tiny_config(tmp_path)
    spoil(tmp_path / "corpus.jsonl")
    paths = f"data.paths=[{tmp_path}/corpus.jsonl*]"
    refused(overland("run", config, paths, f"run_dir={tmp_path}/runs/a"), *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_tokenizer_that_does_not_match_the_data(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    foreign = Tokenizer(models.WordLevel({"[UNK]": 0, "<|endoftext|>": 1, "chat": 2}, "[UNK]"))
    foreign.pre_tokenizer = pre_tokenizers.Whitespace()
    foreign.add_special_tokens(["<|endoftext|>"])
    foreign.save(str(tmp_path / "tokenizer.json"))
    result = overland("run", config, f"data.tokenizer.path={tmp_path}/tokenizer.json")
    refused(result, "tokenizer.json")
    assert not (tmp_path / "run").exists()
