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

from configs.errors import ConfigError, EvaluationError, RunDirectoryError
from configs.files import write_text
from configs.records import EvaluationScores, Record
from configs.rundir import EvaluationDir, read_record, write_record
from configs.schema import EvaluateConfig, LauncherConfig
from tasks.evaluate.catalog import build_catalog
from tasks.evaluate.command import LEASH_VARIABLE
from tasks.evaluate.devices import check_backend, visible_gpus
from tasks.evaluate.holding import in_charge
from tasks.evaluate.model_folder import check_model
from tasks.evaluate.plan import check_tasks, config_of, current_plan, read_plan
from tasks.evaluate.responses import Pending
from tasks.evaluate.staging import SHARED_MEMORY, clear_unused

__all__ = [
    "Subject",
    "begin",
    "evaluate_folder",
    "evaluated",
    "is_evaluation",
    "is_model",
    "rescore",
    "subject_of",
    "visible_gpus",
]

_LOOK_S = 0.1
_SAY_EVERY_S = 10.0
_LOG_TAIL_BYTES = 4096

Say = Callable[[str], None]


class Subject(Record):
    """evaluation.json: what is evaluated in this folder, and where."""

    model: str
    launcher: LauncherConfig | None = None
    """None: on the machine where the command runs."""


def is_evaluation(folder: Path) -> bool:
    """Whether the folder is an evaluation without a run."""
    return (folder / "evaluation.json").is_file()


def is_model(folder: Path) -> bool:
    """Whether the folder looks like a model in Hugging Face's format."""
    return (folder / "config.json").is_file() and not is_evaluation(folder)


def subject_of(folder: Path) -> Subject:
    """What the folder is about; ConfigError when it is no evaluation."""
    subject = read_record(folder / "evaluation.json", Subject)
    if subject is None:
        raise ConfigError(f"{folder} is no evaluation: it has no evaluation.json")
    return subject


def begin(
    folder: Path, model: Path, config: EvaluateConfig, launcher: LauncherConfig | None = None
) -> EvaluationDir:
    """Make the folder an evaluation of this model, after everything that can be known was checked."""
    check_model(model)
    check_tasks(config)
    check_backend(config.backend)
    for entry in build_catalog(config.task_dirs).select(config.tasks):
        if entry.is_own and not entry.is_group:
            raise ConfigError(
                f"evaluation task {entry.name!r} asks about text that a run has held out, and a "
                "model's folder has none: evaluate the run's directory, or give other tasks"
            )
    known = read_record(folder / "evaluation.json", Subject)
    if known is None and folder.exists() and any(folder.iterdir()):
        raise RunDirectoryError(
            f"{folder} is not empty and holds no evaluation: choose another with --out"
        )
    if known is not None and Path(known.model) != model:
        raise RunDirectoryError(
            f"{folder} holds an evaluation of {known.model}: choose another with --out"
        )
    evaluation = EvaluationDir(folder, step=0)
    with in_charge(evaluation):
        if not evaluation.model_dir.is_symlink():
            evaluation.model_dir.symlink_to(model)
        write_text(evaluation.config_path, config.model_dump_json(indent=2) + "\n")
        subject = Subject(model=str(model), launcher=launcher)
        write_record(folder / "evaluation.json", subject)
    return evaluation


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
        evaluation.scores_path.unlink(missing_ok=True)
        run(_Progress(evaluation, say).look)
        return asked_scores(evaluation)


def rescore(evaluation: EvaluationDir, arguments: list[str], say: Say) -> EvaluationScores:
    """Score the stored responses anew, by the tasks' files as they are now. Asks no model.

    `arguments`: how the scorer finds the evaluation, as :mod:`tasks.evaluate.command` says.
    """
    with (
        in_charge(evaluation),
        _processes(evaluation, {"score": ["--anew"]}, arguments) as processes,
    ):
        _wait(evaluation, processes, _Progress(evaluation, say).look)
    scores = read_record(evaluation.scores_path, EvaluationScores)
    if scores is None or scores.plan_sha256 != read_plan(evaluation).sha256():
        raise EvaluationError(f"{evaluation.scores_path} was changed meanwhile: score it again")
    return scores


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
                raise EvaluationError(_last_words(evaluation, name))
        look()
        time.sleep(_LOOK_S)
    for name, process in processes.items():
        if process.returncode:
            raise EvaluationError(_last_words(evaluation, name))


class _Progress:
    """Says, now and then, how far an evaluation is."""

    def __init__(self, evaluation: EvaluationDir, say: Say) -> None:
        self._evaluation = evaluation
        self._say = say
        self._next = time.monotonic() + _SAY_EVERY_S

    def look(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SAY_EVERY_S
        plan = current_plan(config_of(self._evaluation), self._evaluation)
        if plan is None:
            return self._say("making the plan")
        shards = [shard for _, shard in plan.shards()]
        left = Pending(self._evaluation, shards).count()
        scored = len(list(self._evaluation.target_scores_dir.glob("*.json")))
        self._say(
            f"{len(shards) - left} of {len(shards)} shards answered, "
            f"{scored} of {len(plan.targets)} tasks scored"
        )


def _log(evaluation: EvaluationDir, name: str) -> Path:
    return evaluation.path / f"{name}.log"


def _last_words(evaluation: EvaluationDir, name: str) -> str:
    """The last line of the process's log, which is its error's sentence."""
    log = _log(evaluation, name)
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    said = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"{said.removeprefix('error: ')} (see {log})"
