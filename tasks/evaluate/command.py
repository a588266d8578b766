"""The command line that the stage's programs share.

    python -m tasks.evaluate.NAME RUN_DIR STEP       a checkpoint of a run
    python -m tasks.evaluate.NAME EVALUATION_DIR     an evaluation that stands alone

Exit code 0 when done. On an error that Overland raises on purpose, or a full disk, its sentences are the
last lines on stderr, each after "error: ", after the traceback of what caused it, if anything did.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.errors import EXIT_OK, EXIT_RUN_FAILED, OverlandError
from configs.full_disk import full_disk
from configs.rundir import EvaluationDir, RunDir

LEASH_VARIABLE = "OVERLAND_EVALUATION_LEASH"
"""Set: end when standard input does, which whoever started the program holds the other end of."""

_ERROR = "error: "


def run_command(
    module: str,
    command: Callable[[EvaluationDir, Path], None],
    argv: list[str] | None = None,
) -> int:
    """Run `command` with the evaluation and the folder of held-out documents; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("directory", type=Path, help="run directory, or an evaluation's own folder")
    parser.add_argument("step", type=int, nargs="?", help="step of the run's checkpoint")
    arguments = parser.parse_args(argv)
    evaluation, heldout_dir = place_of(arguments.directory.absolute(), arguments.step)
    if os.environ.pop(LEASH_VARIABLE, None):
        threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        command(evaluation, heldout_dir)
    except OverlandError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        _say(str(error))
        return error.exit_code
    except Exception as error:
        if (full := full_disk(error)) is None:
            raise
        traceback.print_exception(error)
        _say(full)
        return EXIT_RUN_FAILED
    return EXIT_OK


def last_words(lines: Sequence[str], otherwise: str = "") -> str:
    """What a program said in the end: the sentences of its error, or whatever its last line is; `otherwise`
    when it said nothing."""
    said = [line.strip() for line in lines if line.strip()]
    errors = itertools.takewhile(lambda line: line.startswith(_ERROR), reversed(said))
    sentences = [line.removeprefix(_ERROR) for line in errors][::-1]
    if sentences:
        return "\n".join(sentences)
    return said[-1] if said else otherwise or "no output"


def _say(sentences: str) -> None:
    for sentence in sentences.splitlines():
        print(f"{_ERROR}{sentence}", file=sys.stderr, flush=True)


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(EXIT_RUN_FAILED)


def place_of(directory: Path, step: int | None) -> tuple[EvaluationDir, Path]:
    """The evaluation, and where the held-out documents of its run are."""
    if step is None:
        return EvaluationDir(directory, step=0), directory / "heldout"
    run = RunDir(directory)
    return run.evaluation(step), run.heldout_dir
