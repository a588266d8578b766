"""Brings a model to this node before its workers need it, and clears it away when they have ended.

    python -m tasks.evaluate.precursor MODEL_DIR IDENTITY [--mib-per-s RATE] [--skip PLACE ...]

Says where the model lies as one line of JSON (:class:`tasks.evaluate.staging.Staged`) on standard
output, or why it cannot be had. Holds the copy until its standard input ends, which it does also when
whoever started it is killed; then the copy is removed, unless another evaluation on the node uses it.
When the input ends in mid-copy, the copy is broken off.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import FrameType

from configs.errors import EXIT_OK, EXIT_RUN_FAILED, EvaluationError
from tasks.evaluate.staging import staged


class _Leash:
    """Standard input, watched by a thread: its end ends the copying, or the holding."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._copied = False
        signal.signal(signal.SIGUSR1, self._break_off)
        threading.Thread(target=self._watch, daemon=True).start()

    def hold(self) -> None:
        """Wait for the end. From now on, it interrupts nothing."""
        self._copied = True
        self.ended.wait()

    def _watch(self) -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        self.ended.set()
        # To the main thread: the kernel may give a signal to the whole process to this one.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def _break_off(self, number: int, frame: FrameType | None) -> None:
        if not self._copied:
            raise SystemExit(EXIT_OK)


def hold(model_dir: Path, identity: str, mib_per_s: float | None, skip: Collection[str]) -> int:
    """Stage the model and hold it until standard input ends."""
    signal.signal(signal.SIGTERM, _leave)  # by way of the removal
    leash = _Leash()
    try:
        with staged(model_dir, identity, mib_per_s=mib_per_s, skip=skip) as copy:
            print(copy.model_dump_json(), flush=True)
            leash.hold()
    except (EvaluationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_RUN_FAILED
    return EXIT_OK


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.evaluate.precursor")
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("identity")
    parser.add_argument("--mib-per-s", type=float)
    parser.add_argument("--skip", action="append", default=[])
    given = parser.parse_args(argv)
    return hold(given.model_dir, given.identity, given.mib_per_s, given.skip)


if __name__ == "__main__":
    sys.exit(_main())
