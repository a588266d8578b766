"""Loads an evaluation's tasks through lm-eval and enumerates their requests, the same in every process.

Planning, inference and scoring each call this on the same YAML files. The steps and seeds are those of
lm-eval's `simple_evaluate`, in its order; each target is seeded anew, so that its prompts do not depend
on which other targets are loaded.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import random
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import EvaluationError
from configs.files import sha256_of_json
from configs.full_disk import full_disk
from tasks.evaluate.harness import Instance, TaskManager
from tasks.evaluate.harness_errors import no_such_answer, where_raised
from tasks.evaluate.offline import network_allowed
from tasks.evaluate.responses import Key
from tasks.evaluate.task_files import TaskFileError

_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
    str(Path(__file__).parents[1]),
)
"""Beginnings of paths of modules that are no user's."""
SEEDS = {"random": 0, "numpy": 1234, "torch": 1234, "fewshot": 1234}
"""lm-eval's own."""

Requests = dict[str, list[Instance]]
"""Task -> its requests, in order."""


@dataclass(frozen=True)
class Target:
    """A task, group or tag that was asked for, loaded."""

    name: str
    task_dict: dict[str, Any]
    """What lm-eval's `evaluate` takes: tasks, groups, group_map."""

    @property
    def tasks(self) -> dict[str, Any]:
        """Name -> lm-eval task, for each task of the target."""
        tasks: dict[str, Any] = self.task_dict["tasks"]
        return tasks


def load_targets(
    tasks_dir: Path, names: Iterable[str], num_fewshot: int | None
) -> Iterator[Target]:
    """Load each named task, group or tag from the YAML files in `tasks_dir`."""
    manager = open_tasks(tasks_dir)
    return (load_target(manager, name, num_fewshot) for name in names)


def open_tasks(tasks_dir: Path) -> TaskManager:
    """lm-eval's view of the YAML files in `tasks_dir`."""
    return TaskManager(include_path=str(tasks_dir), include_defaults=False)


def load_target(manager: TaskManager, name: str, num_fewshot: int | None) -> Target:
    """Load a task, group or tag; TaskFileError when lm-eval cannot."""
    random.seed(SEEDS["random"])
    np.random.seed(SEEDS["numpy"])
    try:
        target = Target(name, manager.load([name]))
    except Exception as error:
        raise _refused(f"evaluation task {name!r} cannot be loaded", error) from error
    for task_name, task in target.tasks.items():
        _check(task_name, task)
        _set_fewshot(task, num_fewshot)
    return target


def _refused(what: str, error: Exception) -> EvaluationError:
    """The task's own fault, unless the disk or the network may be to blame."""
    full = full_disk(error)
    if full is not None:
        return EvaluationError(f"{what}: {full}")
    kind = EvaluationError if network_allowed() else TaskFileError
    if (answer := no_such_answer(error)) is not None:
        return kind(f"{what}: {answer}")
    where = where_raised(error)
    return kind(f"{what}: {one_line(error)}{f' ({where})' if where else ''}{_place_of(error)}")


def _place_of(error: BaseException) -> str:
    """Where in a user's own module it was raised, if in one."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if path.endswith(".py") and not path.startswith(_INSTALLED):
            place = f" ({path}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _check(name: str, task: Any) -> None:
    if getattr(task, "MULTIMODAL", False):
        raise TaskFileError(
            f"evaluation task {name!r} has images or sound, and the model reads only text: leave it out"
        )


def _set_fewshot(task: Any, num_fewshot: int | None) -> None:
    """As `simple_evaluate` does: a task's own 0 is never overridden, and no number means 0."""
    own = task.get_config("num_fewshot")
    if num_fewshot is not None and own != 0:
        task.set_config(key="num_fewshot", value=num_fewshot)
    elif own is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=SEEDS["fewshot"])


def enumerate_requests(target: Target, limit: int | None) -> Requests:
    """Task -> its requests in order; TaskFileError when lm-eval cannot make them. Always the whole task: the few-shot sampler is one random stream
    over all documents, so a part that is enumerated alone has other prompts."""
    requests: Requests = {}
    for name, task in target.tasks.items():
        try:
            pin_documents(task, list(itertools.islice(task.eval_docs, limit)))
            task.build_all_requests(limit=limit, rank=0, world_size=1)
        except Exception as error:
            raise _refused(
                f"the prompts of evaluation task {name!r} cannot be made", error
            ) from error
        requests[name] = list(task.instances)
    return requests


class _Documents(Sequence[dict[str, Any]]):
    """A task's documents, a new copy at each look: tasks may change what they are given."""

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, position: Any) -> Any:
        return copy.deepcopy(self._documents[position])


def pin_documents(task: Any, documents: list[dict[str, Any]]) -> None:
    """Have the task ask about these documents.

    lm-eval processes a task's documents anew at each look, and some tasks shuffle in it: then requests
    are made of other documents than results.
    """
    pinned = _Documents(documents)
    kind = type(task)
    task.__class__ = type(kind.__name__, (kind,), {"eval_docs": property(lambda _: pinned)})


def request_key(request: Instance, repeat: int) -> Key:
    """Identifies one response."""
    return (request.task_name, request.doc_id, request.request_type, request.idx, repeat)


def request_sha256(request: Instance) -> str:
    """Hash of all that the model is asked."""
    try:
        return sha256_of_json([request.request_type, list(request.args)])
    except (TypeError, ValueError) as error:
        raise EvaluationError(
            f"evaluation task {request.task_name!r}: a request holds something that is not text, "
            f"numbers or lists: {one_line(error)}"
        ) from error


def requests_sha256(requests: Iterable[Instance]) -> str:
    """Hash over a task's requests, in order."""
    digest = hashlib.sha256()
    for request in requests:
        digest.update(bytes.fromhex(request_sha256(request)))
    return digest.hexdigest()


def one_line(error: BaseException) -> str:
    """The error's type and words, on one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
