"""Evaluates any Hugging Face folder: the coordinator of an evaluation without a run.

    DIR/evaluation.json            which model
    DIR/model                      a link to it
    DIR/config.json, plan.json, responses/, scores/, scores.json, ...    as of a checkpoint's evaluation
    DIR/infer.log, score.log       what the processes said

On this machine it needs neither Prefect nor a launcher. What is there is done: the same call again goes on where it was
ended, and another one for the same folder reuses what fits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import EXIT_BAD_INPUT, EvaluationError
from configs.full_disk import with_room_note
from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, read_record
from tasks.evaluate.begin import (
    Subject,
    begun,
    is_evaluation,
    is_model,
    subject_of,
)
from tasks.evaluate.command import LEASH_VARIABLE, last_words
from tasks.evaluate.devices import check_gpus, visible_gpus
from tasks.evaluate.holding import in_charge
from tasks.evaluate.model_folder import check_model
from tasks.evaluate.plan import config_of, current_plan, read_plan
from tasks.evaluate.progress import Progress, how_far
from tasks.evaluate.staging import SHARED_MEMORY, clear_unused
from tasks.evaluate.task_checks import check_tasks
from tasks.evaluate.task_files import TaskFileError

__all__ = [
    "Subject",
    "begun",
    "check_gpus",
    "evaluate_folder",
    "evaluated",
    "finished",
    "how_far",
    "is_evaluation",
    "is_model",
    "rescore",
    "subject_of",
    "visible_gpus",
]

_LOOK_S = 0.1
_LOG_TAIL_BYTES = 4096

Say = Callable[[str], None]


def evaluate_folder(evaluation: EvaluationDir, say: Say) -> EvaluationScores:
    """Infer and score what is not done yet, on this machine; returns all scores."""

    def run(look: Callable[[], None]) -> None:
        try:
            with _processes(evaluation, {"infer": [], "score": ["--follow"]}) as processes:
                _wait(evaluation, processes, look)
        finally:
            for place in (SHARED_MEMORY, Path(tempfile.gettempdir())):
                clear_unused(place)

    return evaluated(evaluation, say, run)


def evaluated(
    evaluation: EvaluationDir, say: Say, run: Callable[[Callable[[], None]], None]
) -> EvaluationScores:
    """All scores, after `run` has made what is missing; it calls what it is given now and then, which
    says how far it is."""
    check_model(evaluation.model_dir)
    with in_charge(evaluation):
        if (scores := finished(evaluation)) is not None and not scores.failed:
            say("everything is done already")
            return scores
        _check_question(evaluation)
        progress = Progress(evaluation, say)
        run(progress.look)
        progress.end()
        return asked_scores(evaluation)


def rescore(evaluation: EvaluationDir, arguments: list[str], say: Say) -> EvaluationScores:
    """Score the stored responses anew, by the tasks' files as they are now. Asks no model.

    `arguments`: how the scorer finds the evaluation, as :mod:`tasks.evaluate.command` says.
    """
    _check_question(evaluation)
    with (
        in_charge(evaluation),
        _processes(evaluation, {"score": ["--anew"]}, arguments) as processes,
    ):
        _wait(evaluation, processes, Progress(evaluation, say).look)
    scores = read_record(evaluation.scores_path, EvaluationScores)
    if scores is None or scores.plan_sha256 != read_plan(evaluation).sha256():
        raise EvaluationError(f"{evaluation.scores_path} was changed meanwhile: score it again")
    return scores


def _check_question(evaluation: EvaluationDir) -> None:
    """ConfigError when what is asked there cannot be asked any more. Of a run, its flow and the plan do it."""
    if is_evaluation(evaluation.path):
        check_tasks(config_of(evaluation), of_run=False)


def finished(evaluation: EvaluationDir) -> EvaluationScores | None:
    """The scores, if they are of the plan that the config and the model ask for."""
    plan = current_plan(config_of(evaluation), evaluation)
    scores = read_record(evaluation.scores_path, EvaluationScores)
    if plan is None or scores is None or scores.plan_sha256 != plan.sha256():
        return None
    return scores


def asked_scores(evaluation: EvaluationDir) -> EvaluationScores:
    """The scores; EvaluationError when they answer something else than the config asks now."""
    if (scores := finished(evaluation)) is not None:
        return scores
    if not evaluation.scores_path.is_file():
        raise EvaluationError(f"{evaluation.scores_path} is missing: evaluate anew")
    raise EvaluationError(
        f"{evaluation.scores_path} answers another plan than the config, the task files and the "
        "model ask for now: evaluate anew"
    )


@contextmanager
def _processes(
    evaluation: EvaluationDir, wanted: dict[str, list[str]], arguments: list[str] | None = None
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The stage's programs, which end with this process, or with the block."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    # A folder of the user's that is called configs/ or tasks/ is not ours.
    environment = {**os.environ, "PYTHONSAFEPATH": "1", LEASH_VARIABLE: "1"}
    try:
        for name, flags in wanted.items():
            where = arguments or [str(evaluation.path)]
            with open(_log(evaluation, name), "wb") as log:
                processes[name] = subprocess.Popen(
                    [sys.executable, "-m", f"tasks.evaluate.{name}", *where, *flags],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.communicate()


def _wait(
    evaluation: EvaluationDir,
    processes: dict[str, subprocess.Popen[bytes]],
    look: Callable[[], None],
) -> None:
    """Wait until all processes are done; EvaluationError with the words of the first that fails."""
    while running := [name for name, process in processes.items() if process.poll() is None]:
        for name, process in processes.items():
            # What a failed scorer says can wait until the model has answered everything.
            if process.poll() and (name == "infer" or "infer" not in running):
                raise _failure(evaluation, name, process.returncode)
        look()
        time.sleep(_LOOK_S)
    for name, process in processes.items():
        if process.returncode:
            raise _failure(evaluation, name, process.returncode)


def _log(evaluation: EvaluationDir, name: str) -> Path:
    return evaluation.path / f"{name}.log"


def _failure(evaluation: EvaluationDir, name: str, exit_code: int) -> EvaluationError:
    """What the process's error says, and where to read more; of a full disk, as it may not have said."""
    log = _log(evaluation, name)
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        said = last_words(file.read().decode(errors="replace").splitlines())
    if exit_code == EXIT_BAD_INPUT:
        return TaskFileError(said)
    return EvaluationError(f"{with_room_note(said, evaluation.path)} (see {log})")
