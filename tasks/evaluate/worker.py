"""A worker: loads the model once, then answers shard after shard. Started by :mod:`tasks.evaluate.crew`.

    python -m tasks.evaluate.worker EVALUATION_DIR NAME CREW BACKEND

It imports what it needs, then waits on standard input for one line of JSON (which model, which plan):
staging and planning go on meanwhile. It takes shards as :mod:`tasks.evaluate.turns` says, and ends when
none is left to begin, and with the crew that holds the other end of its standard input. A shard on which
the backend raises ends it too: the next process begins with a clean device.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from configs.errors import EXIT_OK, EXIT_RUN_FAILED, EvaluationError
from configs.files import write_text
from configs.rundir import EvaluationDir
from tasks.evaluate.backends import ask, import_backend, load_model
from tasks.evaluate.claims import Claims, DeadlyShardError, this_process
from tasks.evaluate.devices import slot
from tasks.evaluate.enumeration import one_line
from tasks.evaluate.given_up import EXIT_BEGIN_AGAIN, ShardError, give_up, note_failure
from tasks.evaluate.manifest import read_requests, requests_path
from tasks.evaluate.plan import EvaluationPlan, ShardPlan, TaskPlan, name_on_node, read_plan
from tasks.evaluate.responses import is_done, shard_path, write_shard
from tasks.evaluate.times import Done, error_path, record
from tasks.evaluate.turns import Turns
from tasks.evaluate.versions import check_versions


def work(evaluation: EvaluationDir, name: str, crew: str, model_dir: Path) -> bool:
    """Answer shards until none is left to take; False: until one cannot be answered."""
    plan = read_plan(evaluation)
    check_versions(plan.answering.versions, plan.answering.backend)
    name = name_on_node(name)
    claims = Claims(evaluation.claims_dir, this_process(crew, name))
    claims.keep_alive()
    model, time_s = load_and_record(evaluation, model_dir, plan, worker=name)
    _say(f"{name}: model loaded in {time_s:.1f} s")
    for task, shard in Turns(evaluation, plan, name):
        try:
            # Done may have become true between a look and the claim: look again when it is ours.
            if (
                is_done(evaluation, shard)
                or not claims.take(shard.name)
                or is_done(evaluation, shard)
            ):
                continue
            responses, time_s = answer_shard(evaluation, model, task, shard, worker=name)
        except DeadlyShardError as error:
            give_up(evaluation, plan, task, str(error))
            continue
        except ShardError as error:
            traceback.print_exc()
            note_failure(evaluation, plan, task, shard, str(error))
            return False
        _say(f"{name}: {task.task}: {responses} responses in {time_s:.1f} s")
    return True


def load_and_record(
    evaluation: EvaluationDir, model_dir: Path, plan: EvaluationPlan, *, worker: str
) -> tuple[Any, float]:
    """Load the model and write the time; the model, and seconds."""
    started_at = time.time()
    model = load_model(model_dir, plan.answering)
    loaded = Done(
        kind="load", name="model", worker=worker, started_at=started_at, ended_at=time.time()
    )
    record(evaluation, loaded)
    return model, loaded.time_s


def answer_shard(
    evaluation: EvaluationDir, model: Any, task: TaskPlan, shard: ShardPlan, *, worker: str
) -> tuple[int, float]:
    """Ask what the shard holds, write the responses and the time; how many there are, and seconds.

    ShardError when the backend cannot answer it.
    """
    started_at = time.time()
    rows = read_requests(requests_path(evaluation, task.file), shard.start_bytes, shard.stop_bytes)
    try:
        responses = ask(model, [row.as_instance(task.task) for row in rows])
    except Exception as error:
        raise ShardError(one_line(error)) from error
    write_shard(shard_path(evaluation, shard.name), responses)
    done = Done(
        kind="shard",
        name=shard.name,
        worker=worker,
        started_at=started_at,
        ended_at=time.time(),
        requests=len(rows),
    )
    record(evaluation, done)
    return len(responses), done.time_s


def _main(evaluation_dir: Path, name: str, crew: str, backend: str) -> int:
    evaluation = EvaluationDir(evaluation_dir, step=0)
    try:
        import_backend(backend, evaluation.model_dir)
        go = sys.stdin.readline()
        if not go:
            return EXIT_OK  # the crew has ended before there was anything to do
        threading.Thread(target=_end_with_crew, daemon=True).start()
        with slot(name_on_node(name)):
            model_dir = Path(json.loads(go)["model_dir"])
            return EXIT_OK if work(evaluation, name, crew, model_dir) else EXIT_BEGIN_AGAIN
    except Exception as error:
        if not isinstance(error, EvaluationError) or error.__cause__ is not None:
            traceback.print_exc()
        sentence = str(error) if isinstance(error, EvaluationError) else one_line(error)
        write_text(error_path(evaluation, name), sentence + "\n")
        return EXIT_RUN_FAILED


def _end_with_crew() -> None:
    while os.read(
        sys.stdin.fileno(), 1
    ):  # not through the buffer, which a thread must not hold at exit
        pass
    os._exit(EXIT_RUN_FAILED)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    _directory, *_arguments = sys.argv[1:]
    sys.exit(_main(Path(_directory), *_arguments))
