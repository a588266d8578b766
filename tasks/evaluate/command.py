"""The command line that the stage's programs share: `python -m tasks.evaluate.NAME RUN_DIR STEP`.

Exit code 0 when done. On an error that Overland raises on purpose, its sentence is the last line on
stderr, after the traceback of what caused it, if anything did.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from configs.errors import EXIT_OK, OverlandError


def run_command(
    module: str, command: Callable[[Path, int], None], argv: list[str] | None = None
) -> int:
    """Parse RUN_DIR and STEP, run `command` with them, and return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("run_dir", type=Path, help="the run directory")
    parser.add_argument("step", type=int, help="step of the checkpoint")
    arguments = parser.parse_args(argv)
    try:
        command(arguments.run_dir.absolute(), arguments.step)
    except OverlandError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return EXIT_OK
