"""Training takes only a data set that was prepared for its own config."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from data_corpora import make_config

from configs.errors import EXIT_BAD_INPUT, RunDirectoryError
from configs.records import DataManifest
from configs.rundir import RunDir, write_record
from configs.schema import RunConfig
from tasks.data.prepare import prepare
from tasks.data.task import prepared_data


@pytest.fixture
def run(tmp_path: Path, prepared: tuple[Path, DataManifest]) -> RunDir:
    """A run directory with the data set."""
    run = RunDir(tmp_path / "run")
    shutil.copytree(prepared[0], run.data_dir)
    return run


def in_run(config: RunConfig, run: RunDir, **changes: Any) -> RunConfig:
    return config.model_copy(update={"run_dir": run.path, **changes})


def test_its_own_data_set_is_taken(
    run: RunDir, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = in_run(make_config(corpus_file, workers=3), run, name="other")
    assert prepared_data(config) == run.manifest()
    monkeypatch.chdir(corpus_file.parent)
    assert prepared_data(in_run(make_config(corpus_file.name), run)) == run.manifest()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": {"vocab_size": 500}}, "data.tokenizer.vocab_size=400, this config says 500"),
        ({"tokenizer": {"path": "/t.json"}}, "data.tokenizer.path=None, this config says /t.json"),
        ({"validation_fraction": 0.2}, "data.validation_fraction=0.1, this config says 0.2"),
        ({"sequence_length": 32}, "model.sequence_length=64, this config says 32"),
        ({"text_field": "body"}, "data.text_field=text, this config says body"),
    ],
)
def test_a_data_set_for_another_config_is_refused(
    run: RunDir, corpus_file: Path, changes: dict[str, Any], said: str
) -> None:
    config = in_run(make_config(corpus_file, **changes), run)
    with pytest.raises(RunDirectoryError, match=re.escape(said)) as caught:
        prepared_data(config)
    assert caught.value.exit_code == EXIT_BAD_INPUT
    assert str(caught.value).endswith("set it back, or run `overland prepare` again")


def test_another_seed_or_corpus_is_refused(run: RunDir, corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="seed=7, this config says 8"):
        prepared_data(in_run(make_config(corpus_file), run, seed=8))
    run.attempt(1).path.mkdir(parents=True)  # Now preparing again would change nothing.
    with pytest.raises(RunDirectoryError, match=r"data\.paths=.*choose another run_dir=DIR$"):
        prepared_data(in_run(make_config(tmp_path / "other.jsonl"), run))


def test_the_same_corpus_at_another_place_is_taken_after_a_prepare(
    run: RunDir, corpus_file: Path, tmp_path: Path
) -> None:
    config = in_run(make_config(shutil.copy(corpus_file, tmp_path / "moved.jsonl")), run)
    with pytest.raises(RunDirectoryError, match="overland prepare"):
        prepared_data(config)
    before = run.manifest()
    manifest = prepare(config, run.data_dir, report=lambda message: None)
    assert before is not None and manifest.created_at == before.created_at
    assert prepared_data(config) == manifest


def test_a_manifest_that_does_not_say_is_taken(run: RunDir, corpus_file: Path) -> None:
    """One of a version before this was recorded."""
    manifest = run.manifest()
    assert manifest is not None
    write_record(run.manifest_path, manifest.model_copy(update={"config": {}}))
    assert prepared_data(in_run(make_config(corpus_file), run)) is not None


def test_no_data_set_says_what_to_run(tmp_path: Path, corpus_file: Path) -> None:
    with pytest.raises(RunDirectoryError, match="has no data set: run `overland prepare` first"):
        prepared_data(in_run(make_config(corpus_file), RunDir(tmp_path / "empty")))
