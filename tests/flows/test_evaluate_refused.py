"""What `overland evaluate` refuses: a sentence for each mistake, and folders that are nothing it knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from configs.errors import ConfigError, EvaluationError, InputError
from flows import cli


def test_each_mistake_begins_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    cli._print_error(ConfigError("the first is [wrong]\nthe second is too\n  as it says"))
    said = capsys.readouterr().err
    assert said == "error: the first is [wrong]\nerror: the second is too\n  as it says\n"
    cli._print_error(EvaluationError("a job failed\nwith these words"))
    assert capsys.readouterr().err == "error: a job failed\nwith these words\n"


@pytest.mark.parametrize("name", ["model.safetensors", None])
def test_a_folder_without_a_config_is_neither_model_nor_run(
    tmp_path: Path, name: str | None
) -> None:
    if name is not None:
        (tmp_path / name).touch()
    for options in ([], ["--tasks", "a", "--out", "o"], ["--resume"]):
        error = CliRunner().invoke(cli.app, ["evaluate", str(tmp_path), *options]).exception
        assert isinstance(error, InputError)
        assert str(error).startswith(f"{tmp_path} has no config.json, so it is no model in")
        assert "no config.yaml" in str(error)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    error = CliRunner().invoke(cli.app, ["evaluate", str(tmp_path / "model.gguf")]).exception
    assert isinstance(error, InputError)
    assert "model.gguf is no folder: " in str(error)
