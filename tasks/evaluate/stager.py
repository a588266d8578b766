"""Sees that the model is near this node's workers: the precursor, started, watched, replaced."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir
from configs.schema import EvaluateConfig
from tasks.evaluate.model_folder import model_identity
from tasks.evaluate.staging import PLACES, Staged, clear_all_unused

_LOOK_S = 0.05
_TRIES = 3
_LEAVE_S = 10.0
"""For removing the copy; one that hangs, in a read of storage that is gone, is not waited for."""


class Stager:
    """One node's precursor. Nothing here waits but `wait`, and that has a limit."""

    def __init__(self, evaluation: EvaluationDir, config: EvaluateConfig) -> None:
        self._evaluation = evaluation
        self._config = config
        self._precursor: subprocess.Popen[str] | None = None
        self._answer: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._tries = 0
        self._deaths = 0
        """In mid-copy. The kernel ends whoever uses too much memory, so the place is to blame."""
        self.is_staged = False

    def start(self) -> None:
        """Begin to copy."""
        if self._precursor is not None and self._precursor.stdin is not None:
            self._precursor.stdin.close()  # it has ended
        self.is_staged = False
        self._tries += 1
        rate, skip = self._config.stage_mib_per_s, PLACES[: self._deaths]
        argv = [str(self._evaluation.model_dir), model_identity(self._evaluation)]
        argv += [] if rate is None else [f"--mib-per-s={rate}"]
        argv += [f"--skip={place}" for place in skip]
        self._precursor = subprocess.Popen(
            [sys.executable, "-m", "tasks.evaluate.precursor", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer = queue.SimpleQueue()
        assert self._precursor.stdout is not None
        reading = (self._precursor.stdout, self._answer)
        threading.Thread(target=_read, args=reading, daemon=True).start()

    def wait(self, timeout_s: float) -> Staged:
        """Where the model is, as soon as it is there."""
        deadline = time.monotonic() + timeout_s
        while (staged := self.look()) is None:
            if time.monotonic() >= deadline:
                raise EvaluationError(
                    f"{self._evaluation.model_dir} was not staged within {timeout_s:.0f} s "
                    "(evaluate.timeout_s): is its storage there?"
                )
            time.sleep(_LOOK_S)
        return staged

    def look(self) -> Staged | None:
        """Where the model is, once after each copy; a precursor that was killed is replaced."""
        assert self._precursor is not None
        if self.is_staged:
            if self._precursor.poll() is not None:
                _say("the precursor was ended; another one holds the model now")
                self._tries = 0
                self.start()
            return None
        try:
            line = self._answer.get_nowait()
        except queue.Empty:
            return None
        if line:
            self.is_staged = True
            return Staged.model_validate_json(line)
        code = self._precursor.wait()
        if code >= 0 or self._tries >= _TRIES:  # it said why on stderr
            raise EvaluationError(f"{self._evaluation.model_dir} could not be staged: see above")
        _say(f"the precursor was ended by signal {-code} while it copied the model")
        self._deaths += 1
        self.start()
        return None

    def close(self) -> None:
        """Have the copy removed, unless others use it."""
        if self._precursor is None:
            return
        assert self._precursor.stdin is not None
        self._precursor.stdin.close()
        try:
            self._precursor.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._precursor.kill()
            with suppress(subprocess.TimeoutExpired):
                self._precursor.wait(_LEAVE_S)
        clear_all_unused()


def _read(stdout: IO[str], answer: queue.SimpleQueue[str]) -> None:
    """Its one line, or nothing when it has ended without."""
    with stdout:
        answer.put(stdout.readline())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
