"""A folder becomes an evaluation, or stays as it was when what was asked for is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluation_setup import write_heldout, write_user_tasks

from configs.errors import EvaluationError, OverlandError, RunDirectoryError
from configs.rundir import EvaluationDir
from configs.schema import EvaluateConfig
from configs.writable import check_writable
from flows.cli_evaluate import _said_when_ended
from tasks.evaluate import devices
from tasks.evaluate.begin import begun
from tasks.evaluate.command import last_words, run_command
from tasks.evaluate.devices import check_gpus
from tasks.evaluate.task_files import TaskFileError


@pytest.fixture
def config(tmp_path: Path) -> EvaluateConfig:
    folder = tmp_path / "tasks"
    write_heldout(folder, count=2)
    write_user_tasks(folder)
    return EvaluateConfig(tasks=["shots"], task_dirs=[folder])


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nothing/x"])
def test_where_nothing_can_be_written_is_said_and_nothing_left(
    tmp_path: Path, tiny_model: Path, config: EvaluateConfig, place: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    before = tree(tmp_path)
    with (
        pytest.raises(RunDirectoryError, match=r"cannot be .*: choose another with --out"),
        begun(tmp_path / place, tiny_model, config),
    ):
        pass
    assert tree(tmp_path) == before
    with pytest.raises(RunDirectoryError, match="cannot be made"):
        check_writable(tmp_path / "file" / "x", hint="")


def test_wrong_input_that_is_found_late_leaves_nothing(
    tmp_path: Path, tiny_model: Path, config: EvaluateConfig
) -> None:
    folder = tmp_path / "new" / "deep"
    with (
        pytest.raises(TaskFileError),
        begun(folder, tiny_model, config) as evaluation,
    ):
        (evaluation.path / "infer.log").write_text("a traceback")
        raise TaskFileError("raised by lm-eval")
    assert not (tmp_path / "new").exists()
    assert (tiny_model / "config.json").is_file()  # the link was removed, not the model


@pytest.mark.parametrize("error", [EvaluationError("killed"), RunDirectoryError("in use")])
def test_what_failed_for_another_reason_can_be_resumed(
    tmp_path: Path, tiny_model: Path, config: EvaluateConfig, error: OverlandError
) -> None:
    with pytest.raises(type(error)), begun(tmp_path / "e", tiny_model, config):
        raise error
    assert (tmp_path / "e" / "evaluation.json").is_file()


def test_a_refused_second_question_leaves_the_first(
    tmp_path: Path, tiny_model: Path, config: EvaluateConfig
) -> None:
    folder = tmp_path / "e"
    with begun(folder, tiny_model, config) as evaluation:
        evaluation.scores_path.write_text("scores")
    before = tree(folder)
    second = config.model_copy(update={"limit": 1})
    with pytest.raises(TaskFileError), begun(folder, tiny_model, second):
        assert tree(folder) != before
        raise TaskFileError("raised by lm-eval")
    assert tree(folder) == before


def test_what_somebody_else_has_asked_meanwhile_stays(
    tmp_path: Path, tiny_model: Path, config: EvaluateConfig
) -> None:
    folder = tmp_path / "e"
    second = config.model_copy(update={"limit": 1})
    with pytest.raises(TaskFileError), begun(folder, tiny_model, config):
        with begun(folder, tiny_model, second):
            theirs = tree(folder)
        raise TaskFileError("raised by lm-eval")
    assert tree(folder) == theirs


def test_ctrl_c_is_told_what_is_kept_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = EvaluationDir(tmp_path / "an evaluation", step=0)
    evaluation.path.mkdir()
    evaluation.config_path.write_text(EvaluateConfig(tasks=["a"]).model_dump_json())
    with (
        pytest.raises(KeyboardInterrupt),
        _said_when_ended(evaluation, ["overland", "evaluate", str(evaluation.path), "--resume"]),
    ):
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert said == (
        "interrupted (making the plan): what is done is kept; "
        f"to go on: overland evaluate '{evaluation.path}' --resume\n"
    )


def test_what_a_program_said_last_is_all_of_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(evaluation: EvaluationDir, heldout_dir: Path) -> None:
        raise TaskFileError("one is wrong\nand another")

    assert run_command("a.module", fail, ["/nowhere"]) == 2
    lines = ["a note", *capsys.readouterr().err.splitlines(), ""]
    assert last_words(lines) == "one is wrong\nand another"
    assert last_words(["Traceback", "  KeyError: 'a'"]) == "KeyError: 'a'"
    assert last_words([" "], otherwise="time limit of 600 s") == "time limit of 600 s"
    assert last_words([]) == "no output"


def test_a_program_that_meets_a_full_disk_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(evaluation: EvaluationDir, heldout_dir: Path) -> None:
        raise RuntimeError("generating failed") from OSError(28, "No space left", str(tmp_path))

    assert run_command("a.module", fail, ["/nowhere"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {tmp_path} cannot be written: No space left, ")


def test_gpus_that_are_not_there_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_DRIVER_FOLDER", tmp_path)
    for number in range(2):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    check_gpus([0, 1])
    check_gpus([0, 7], count=8)
    for numbers, words in (
        ([0, 2], "--gpus 2 is no GPU there: numbers go up to 1"),
        ([0, 0], "--gpus 0,0 must be different numbers"),
        ([-1], "--gpus -1 must be different numbers, from 0 on"),
    ):
        with pytest.raises(OverlandError, match=words):
            check_gpus(numbers)
    monkeypatch.setattr(devices, "_DRIVER_FOLDER", tmp_path / "none")
    monkeypatch.setattr(devices, "_OTHER_SIGNS", (tmp_path,))
    check_gpus([3])  # how many there are is not known
    monkeypatch.setattr(devices, "_OTHER_SIGNS", ())
    with pytest.raises(OverlandError, match="there is none: give --gpus none for the CPU"):
        check_gpus([0])
