"""Who may change an evaluation's folder, so that nobody removes what another one works on.

    lock         whoever is in charge: the command, the run's flow, or who scores anew
    jobs.lock    shared by the programs that infer and score; alone: the one that plans and scores anew

Jobs go on when whoever started them is killed, so they hold a lock of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from configs.errors import RunDirectoryError
from configs.files import file_lock
from configs.rundir import EvaluationDir


@contextmanager
def in_charge(
    evaluation: EvaluationDir, wait: Callable[[], object] | None = None
) -> Iterator[None]:
    """Be in charge; while another one is: `wait`, again and again, or RunDirectoryError without it."""
    while True:
        with file_lock(evaluation.path / "lock", blocking=False) as held:
            if held:
                yield
                return
        if wait is None:
            raise RunDirectoryError(f"{evaluation.path} is being evaluated by another process")
        wait()


@contextmanager
def at_work(evaluation: EvaluationDir) -> Iterator[None]:
    """Infer or score, beside others who do; after whoever scores anew."""
    with file_lock(evaluation.path / "jobs.lock", shared=True):
        yield


@contextmanager
def alone_at_work(evaluation: EvaluationDir) -> Iterator[None]:
    """Plan and score anew; RunDirectoryError while others infer or score."""
    with file_lock(evaluation.path / "jobs.lock", blocking=False) as held:
        if not held:
            raise RunDirectoryError(
                f"{evaluation.path} is being evaluated: its jobs still run, score anew after them"
            )
        yield
