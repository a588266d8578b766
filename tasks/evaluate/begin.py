"""Makes a folder the evaluation of a model, and undoes that when what was asked for turns out to be wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from configs.errors import (
    EXIT_BAD_INPUT,
    ConfigError,
    EvaluationError,
    OverlandError,
    RunDirectoryError,
)
from configs.files import write_text
from configs.full_disk import full_disk
from configs.records import Record
from configs.rundir import EvaluationDir, read_record, write_record
from configs.schema import EvaluateConfig, LauncherConfig
from configs.writable import check_writable
from tasks.evaluate.devices import check_backend
from tasks.evaluate.holding import in_charge
from tasks.evaluate.model_folder import check_model
from tasks.evaluate.task_checks import check_tasks


class Subject(Record):
    """evaluation.json: what is evaluated in this folder, and where."""

    model: str
    launcher: LauncherConfig | None = None
    """None: on the machine where the command runs."""


def is_evaluation(folder: Path) -> bool:
    """Whether the folder is an evaluation without a run."""
    return os.path.isfile(folder / "evaluation.json")  # noqa: PTH113 (no error where it may not look)


def is_model(folder: Path) -> bool:
    """Whether the folder looks like a model in Hugging Face's format."""
    is_there = os.path.isfile(folder / "config.json")  # noqa: PTH113
    return is_there and not is_evaluation(folder)


def subject_of(folder: Path) -> Subject:
    """What the folder is about; ConfigError when it is no evaluation."""
    subject = _subject(folder)
    if subject is None:
        raise ConfigError(f"{folder} is no evaluation: it has no evaluation.json")
    return subject


@contextmanager
def begun(
    folder: Path, model: Path, config: EvaluateConfig, launcher: LauncherConfig | None = None
) -> Iterator[EvaluationDir]:
    """Make the folder an evaluation of this model, after everything that can be known was checked.

    Wrong input that only the block finds leaves the folder as it was, and none where there was none.
    """
    check_model(model)
    check_tasks(config, of_run=False)
    check_backend(config.backend)
    check_writable(folder, hint="choose another with --out")
    known = _subject(folder)
    if known is None and folder.exists() and any(folder.iterdir()):
        raise RunDirectoryError(
            f"{folder} is not empty and holds no evaluation: choose another with --out"
        )
    if known is not None and Path(known.model) != model:
        raise RunDirectoryError(
            f"{folder} holds an evaluation of {known.model}: choose another with --out"
        )
    evaluation = EvaluationDir(folder, step=0)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    subject = Subject(model=str(model), launcher=launcher)
    before = _question(evaluation)
    try:
        _write(evaluation, config, subject)
        yield evaluation
    except RunDirectoryError:
        raise  # it is another one's by now
    except OverlandError as error:
        if error.exit_code == EXIT_BAD_INPUT or not is_evaluation(folder):
            _undo(evaluation, config, before, made)
        raise


def _subject(folder: Path) -> Subject | None:
    with suppress(NotADirectoryError):
        return read_record(folder / "evaluation.json", Subject)
    return None


def _question(evaluation: EvaluationDir) -> dict[Path, str]:
    """The files that say what is evaluated there and what is asked, with their text."""
    paths = (evaluation.config_path, evaluation.path / "evaluation.json")
    return {path: path.read_text() for path in paths if path.is_file()}


def _text(config: EvaluateConfig) -> str:
    return config.model_dump_json(indent=2) + "\n"


def _write(evaluation: EvaluationDir, config: EvaluateConfig, subject: Subject) -> None:
    try:
        with in_charge(evaluation):
            if not evaluation.model_dir.is_symlink():
                evaluation.model_dir.symlink_to(subject.model)
            write_text(evaluation.config_path, _text(config))
            write_record(evaluation.path / "evaluation.json", subject)
    except OSError as error:
        reason = full_disk(error) or f"{evaluation.path} cannot be written: {error}"
        raise EvaluationError(reason) from error


def _undo(
    evaluation: EvaluationDir,
    config: EvaluateConfig,
    before: dict[Path, str],
    made: Sequence[Path],
) -> None:
    """Leave what was there before. Where somebody else is in charge, or has asked something, all stays."""
    with suppress(RunDirectoryError), in_charge(evaluation):
        path = evaluation.config_path
        if path.is_file() and path.read_text() != _text(config):
            return
        if before:
            for path, text in before.items():
                write_text(path, text)
        elif not evaluation.scores_path.exists():
            with suppress(OSError):  # an ended job's last words may come in between
                _remove(evaluation.path, made)


def _remove(folder: Path, made: Sequence[Path]) -> None:
    """Empty the folder, and remove those that were made for it."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in made:
        path.rmdir()  # OSError where somebody else has begun to use it
