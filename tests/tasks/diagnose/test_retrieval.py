"""Past cases: found by likeness, kept up to date, built anew when they must be."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from configs.errors import ConfigError
from tasks.diagnose.cases import packaged_cases
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.confirmed import confirm, remember
from tasks.diagnose.embed import HashedNgrams, Vectors, normalise
from tasks.diagnose.retrieval import CaseStore, built_in_embedding, nearest, open_cases, windows

LICENCE = "ERROR lmgrd: checkout of feature SOLVER failed: all licences are in use (-4,132)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERLAND_CASES", str(tmp_path / "cases"))
    return tmp_path / "cases"


def given_and_confirmed(case_id: str, text: str, failure_class: str) -> None:
    diagnosis = {
        "file": "x.log",
        "class": "Unknown",
        "root_cause_text": text,
        "evidence": [f"x.log:3: {text}", "password: hunter2"],
    }
    remember(case_id, diagnosis)
    confirm(case_id, failure_class)


def test_packaged_cases_cover_the_classes() -> None:
    covered = {case.failure_class for case in packaged_cases()}
    assert covered == set(CLASSES) - {"Unknown"}
    for case in packaged_cases():
        assert case.root in (*case.lines, ""), case.id
        assert case.resolution, case.id


def test_the_nearest_case_has_the_same_class_more_often_than_not() -> None:
    """Each case against all others; 35 classes, most with four cases that are worded differently."""
    cases = [case for case in packaged_cases() if case.failure_class != "NoFailure"]
    embedding = built_in_embedding()
    stored = embedding.embed([case.indexed_text() for case in cases])
    asked = embedding.embed([case.text for case in cases])
    likeness = asked @ stored.T
    np.fill_diagonal(likeness, -1)
    order = np.argsort(-likeness, axis=1)
    classes = np.array([case.failure_class for case in cases])
    first = float(np.mean(classes[order[:, 0]] == classes))
    among_three = float(
        np.mean([c in classes[row[:3]] for c, row in zip(classes, order, strict=True)])
    )
    assert first >= 0.55
    assert among_three >= 0.72


@pytest.mark.parametrize(
    ("text", "failure_class"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB.",
            "OutOfMemoryError",
        ),
        ("OSError: [Errno 122] Disk quota exceeded: '/b/c'", "OSError"),
        ("n7 kernel: NVRM: Xid (PCI:0000:99:00): 48, pid=1, DBE detected", "ECCError"),
        ("srun: error: Node failure on n12", "NodeFailure"),
    ],
)
def test_like_failures_are_found_in_long_logs(folder: Path, text: str, failure_class: str) -> None:
    routine = [f"step {n} loss {3 - n / 1000:.3f} tokens/s {40000 + n}" for n in range(400)]
    log = "\n".join([*routine[:300], text, *routine[300:]])
    found = nearest(log, 3)
    assert failure_class in [neighbour.case.failure_class for neighbour in found]
    assert found == sorted(found, key=lambda n: -n.similarity)
    assert len(found) == 3


def test_confirmed_diagnoses_are_found_without_their_secrets(folder: Path) -> None:
    assert all(n.case.id != "abc" for n in nearest(LICENCE, 5))
    given_and_confirmed("abc", LICENCE, "ConnectionError")
    best = nearest("ERROR lmgrd: checkout of feature MESHER failed: all licences are in use", 1)[0]
    assert (best.case.id, best.case.failure_class, best.case.source) == (
        "abc",
        "ConnectionError",
        "confirmed",
    )
    for file in folder.iterdir():
        assert b"hunter2" not in file.read_bytes(), file


def test_a_correction_replaces_the_confirmation_before(folder: Path) -> None:
    given_and_confirmed("abc", LICENCE, "ConnectionError")
    with open_cases() as store:
        before = len(store)
    confirm("abc", "NetworkError")
    with open_cases() as store:
        assert len(store) == before
        assert store.nearest(LICENCE, 1)[0].case.failure_class == "NetworkError"


def test_what_is_no_confirmation_is_left_out(folder: Path) -> None:
    folder.mkdir()
    odd = [{"class": "Nope", "diagnosis": {}}, {"id": "x"}, {"class": ["Hang"], "diagnosis": {}}]
    odd += [{"class": "Hang", "diagnosis": {"evidence": 5}}, {"class": "Hang", "diagnosis": 3}]
    entries = ["{", "[]", *map(json.dumps, odd)]
    (folder / "confirmed.jsonl").write_text("\n".join(entries) + "\n")
    with open_cases() as store:
        assert len(store) == len(packaged_cases())


class Lengths:
    """Another embedding: the counts of a few letters."""

    name = "letters/1"
    dimension = 8

    def embed(self, texts: Sequence[str]) -> Vectors:
        rows = np.array([[t.count(c) + 1 for c in "abcdefgh"] for t in texts], dtype=np.float32)
        return rows.reshape(-1, 8) / np.linalg.norm(rows.reshape(-1, 8), axis=1, keepdims=True)


def test_a_store_of_another_embedding_is_embedded_anew(folder: Path) -> None:
    open_cases().close()
    with CaseStore(folder, Lengths()) as store:
        assert len(store) == len(packaged_cases())
        assert len(store.nearest("abc", 2)) == 2
    with open_cases() as store:
        assert store.nearest("No space left on device", 1)[0].case.failure_class == "OSError"


@pytest.mark.parametrize(
    "content", [b"not a database at all " * 400, b"", b"SQLite format 3\0" + b"x" * 999]
)
def test_a_damaged_store_is_built_anew(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / "cases.db").write_bytes(content)
    with open_cases() as store:
        assert len(store) == len(packaged_cases())
        assert store.path is not None


def test_another_programs_database_is_built_anew(folder: Path) -> None:
    folder.mkdir()
    other = sqlite3.connect(folder / "cases.db")
    other.execute("CREATE TABLE about (something TEXT)")
    other.execute("CREATE TABLE cases (id TEXT)")
    other.commit()
    other.close()
    with open_cases() as store:
        assert len(store) == len(packaged_cases())


@pytest.mark.parametrize("blocked", ["folder is a file", "store is a folder"])
def test_where_nothing_can_be_written_the_store_is_in_memory(folder: Path, blocked: str) -> None:
    if blocked == "folder is a file":
        folder.write_text("")
    else:
        (folder / "cases.db").mkdir(parents=True)
    with open_cases() as store:
        assert store.path is None
        assert store.nearest("No space left on device", 1)


def _open_and_count(folder: str) -> int:
    os.environ["OVERLAND_CASES"] = folder
    with open_cases() as store:
        return len(store)


@pytest.mark.slow
def test_many_processes_at_once_have_one_writer(folder: Path) -> None:
    given_and_confirmed("abc", LICENCE, "ConnectionError")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        counts = pool.map(_open_and_count, [str(folder)] * 8)
    assert counts == [len(packaged_cases()) + 1] * 8


@pytest.mark.parametrize("text", ["", "\n\n", "   ", "\0", "é" * 10_000])
def test_empty_and_odd_texts_are_no_trouble(folder: Path, text: str) -> None:
    assert len(nearest(text, 3)) <= 3


def test_windows_are_bounded_and_start_at_both_ends() -> None:
    log = [f"Error {chr(97 + n // 26)}{chr(97 + n % 26)} happened" for n in range(200)]
    pieces = windows("\n".join(log))
    assert len(pieces) <= 25
    assert "Error aa happened" in pieces
    assert log[-1] in pieces


def test_what_differs_from_run_to_run_is_no_difference() -> None:
    a = normalise("OSError at 0x7f3a: '/data/run1/x.bin' after 12.5 s")
    assert a == normalise("OSError at 0xdead: '/other/place/x.bin' after 900 s")


def test_vectors_do_not_depend_on_the_process() -> None:
    """They are stored, and compared with those of later ones."""
    code = (
        "import sys; from tasks.diagnose.retrieval import built_in_embedding as e\n"
        "sys.stdout.buffer.write(e().name.encode() + b'|' + e().embed([sys.argv[1]]).tobytes())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code, LICENCE]
    said = subprocess.run(command, capture_output=True, check=True, env=environment).stdout
    here = built_in_embedding()
    assert said == here.name.encode() + b"|" + here.embed([LICENCE]).tobytes()


def test_an_embedding_is_named_after_what_it_was_fitted_to() -> None:
    corpus = [case.indexed_text() for case in packaged_cases()]
    assert HashedNgrams(corpus[1:]).name != built_in_embedding().name


@pytest.mark.slow
def test_a_sentence_model_can_take_the_built_in_embeddings_place(folder: Path) -> None:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    model = folder.with_name("tiny-bert")
    model.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "disk", "quota", "exceeded", "error"]
    (model / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab_file=str(model / "vocab.txt")).save_pretrained(model)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=9, intermediate_size=16, **shape)).save_pretrained(model)
    assert len(nearest("disk quota exceeded", 3, folder, model)) == 3
    assert nearest("No space left on device", 1, folder)[0].case.failure_class == "OSError"


def test_a_folder_without_a_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model"):
        nearest("x", 1, folder, tmp_path)
