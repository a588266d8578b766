"""Makes an evaluation's plan: renders its tasks, enumerates their requests, cuts shards, writes plan.json.

Reads the held-out documents and the users' task files. Writes, in `evaluations/step_N/`, `tasks/*.yaml`
as lm-eval runs them, `requests/` and `documents/` and, last, `plan.json`, so that every later process
asks exactly the same. Responses that are there and answer requests of the new plan are kept; others
are put aside into `responses/unused/`, where a later plan finds them again.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from configs.errors import ConfigError, EvaluationError
from configs.files import sha256_of_json
from configs.records import ExportRecord
from configs.rundir import EvaluationDir, read_record, step_of_folder
from configs.schema import EvaluateConfig
from tasks.evaluate.catalog import Catalog, build_catalog, file_name
from tasks.evaluate.cutting import Cut, cut
from tasks.evaluate.enumeration import (
    SEEDS,
    Target,
    enumerate_requests,
    load_target,
    open_tasks,
    requests_sha256,
)
from tasks.evaluate.forecast import forecast_for
from tasks.evaluate.harness import Instance
from tasks.evaluate.live_plan import first_live_plan
from tasks.evaluate.manifest import (
    documents_path,
    requests_path,
    rows_of,
    write_documents,
    write_requests,
)
from tasks.evaluate.model_folder import model_identity
from tasks.evaluate.plan import (
    EvaluationPlan,
    ShardPlan,
    TaskPlan,
    answering_of,
    inputs_sha256,
    planned_workers,
)
from tasks.evaluate.plan_swap import Draft, draft_folder, plan_before, swap_in
from tasks.evaluate.render import heldout_file, render
from tasks.evaluate.responses import unused_dir
from tasks.evaluate.schedule_types import Worker
from tasks.evaluate.shards import Range, TaskRows, names_in
from tasks.evaluate.task_checks import checked_entries
from tasks.evaluate.task_files import TaskFileError
from tasks.evaluate.versions import differences

_DATASETS_CACHE = "datasets_cache"


def plan_anew(
    config: EvaluateConfig, evaluation: EvaluationDir, heldout_dir: Path
) -> EvaluationPlan:
    """Plan by the tasks' files as they are now, for stored responses; TaskFileError, and nothing is
    changed, when not all of what they ask is answered.

    Which model has answered, and how it was run, the plan before says: the model may be gone by now.
    """
    before = plan_before(evaluation)
    _refuse_other_answering(config, before)
    return make_plan(config, evaluation, heldout_dir, before=before, check=_refuse_unanswered)


def _refuse_unanswered(plan: EvaluationPlan) -> None:
    left = set(plan.order)
    asked = [task.task for task in plan.tasks if left & {shard.name for shard in task.shards}]
    if asked:
        raise TaskFileError(
            f"evaluation task {asked[0]!r} asks what no stored response answers (its prompts, the "
            "model or how it is run are others than then): evaluate again, without --rescore"
        )


def _refuse_other_answering(config: EvaluateConfig, before: EvaluationPlan | None) -> None:
    """TaskFileError when the config wants the model run otherwise than it was when it answered."""
    if before is None:
        return
    if answering_of(config).without_versions() != before.answering.without_versions():
        raise TaskFileError(
            "the config runs the model otherwise than when it answered (backend, device, dtype, batch "
            "size or threads): evaluate again, without --rescore"
        )


def make_plan(
    config: EvaluateConfig,
    evaluation: EvaluationDir,
    heldout_dir: Path,
    *,
    here: bool = True,
    before: EvaluationPlan | None = None,
    check: Callable[[EvaluationPlan], None] = lambda plan: None,
) -> EvaluationPlan:
    """Make the plan anew, for the model that is there, or for the one that was asked `before`. `here`: this
    node's workers will answer.

    What an earlier plan has left stays until the new one is whole and has passed `check`.
    """
    with draft_folder(evaluation) as folder:
        workers = planned_workers(config, here=here)
        draft = _draft(config, evaluation, folder, heldout_dir, before, workers)
        check(draft.plan)
        swap_in(evaluation, draft)
    return draft.plan


def _draft(
    config: EvaluateConfig,
    evaluation: EvaluationDir,
    folder: EvaluationDir,
    heldout_dir: Path,
    before: EvaluationPlan | None,
    workers: dict[str, Worker],
) -> Draft:
    model_sha256 = before.model_sha256 if before is not None else model_identity(evaluation)
    answering = before.answering if before is not None else answering_of(config)
    export = read_record(evaluation.export_path, ExportRecord)
    inputs = inputs_sha256(config, evaluation, model_sha256, answering)  # before they are read
    targets, left_out, files = _render_targets(config, evaluation, folder.tasks_dir, heldout_dir)
    tasks: list[TaskPlan] = []
    rows: list[TaskRows] = []
    offsets: list[list[int]] = []
    answerer = sha256_of_json([model_sha256, answering.sha_values()])
    for target, name, requests in _enumerated_targets(config, folder, files):
        _refuse_twice(name, tasks)
        task = _enumerated(folder, target, name, requests, number=len(tasks))
        rows.append(TaskRows(name, rows_of(requests), answerer))
        offsets.append(write_requests(requests_path(folder, task.file), rows[-1].rows))
        tasks.append(task)
    forecast = forecast_for(evaluation, answering, evaluation.path / "priors.db")
    done = _done(evaluation, rows)
    remaining = [(r, list(d)) for r, d in zip(rows, done, strict=True)]
    cuts = cut(remaining, list(workers), config.scorers, forecast)
    shards = [
        _shards(r, d, [c for c in cuts.shards if c.task == r.task], o)
        for r, d, o in zip(rows, done, offsets, strict=True)
    ]
    names = {(t.task, s.start): s.name for t, ss in zip(tasks, shards, strict=True) for s in ss}
    plan = EvaluationPlan(
        step=evaluation.step,
        checkpoint=export.checkpoint if export is not None else "",
        model_sha256=model_sha256,
        inputs_sha256=inputs,
        targets=targets,
        left_out=left_out,
        tasks=[
            t.model_copy(update={"shards": s, "metric_s": cuts.metric_s.get(t.task, 0.0)})
            for t, s in zip(tasks, shards, strict=True)
        ],
        order=[names[c.task, c.rows[0]] for c in cuts.shards],
        limit=config.limit,
        num_fewshot=config.num_fewshot,
        answering=answering,
        bootstrap_iterations=config.bootstrap_iterations,
        seeds=SEEDS,
    )
    live = first_live_plan(plan, cuts.schedule, workers) if cuts.schedule is not None else None
    _say_other_versions(plan_before(evaluation), plan)
    return Draft(folder, plan, live)


def _say_other_versions(before: EvaluationPlan | None, plan: EvaluationPlan) -> None:
    """Say why answers that are there are not taken."""
    if before is None or before.model_sha256 != plan.model_sha256:
        return
    was, now = before.answering, plan.answering
    said = differences(
        {"lm_eval": was.lm_eval_version, **was.versions},
        {"lm_eval": now.lm_eval_version, **now.versions},
    )
    if said:
        text = f"packages have changed since the last plan ({said}): earlier answers are not reused"
        print(text, file=sys.stderr, flush=True)


def _enumerated_targets(
    config: EvaluateConfig, folder: EvaluationDir, files: dict[str, str]
) -> Iterator[tuple[Target, str, list[Instance]]]:
    """Each target's tasks with their requests. TaskFileError in the end, with all that lm-eval refuses.

    `files`: target -> where it is defined.
    """
    manager = open_tasks(folder.tasks_dir)
    refused: list[str] = []
    for asked, file in files.items():
        try:
            target = load_target(manager, asked, config.num_fewshot)
            enumerated = enumerate_requests(target, config.limit)
        except TaskFileError as error:
            traceback.print_exception(error.__cause__)
            refused.append(f"{file}: {error}")
            continue
        for name, requests in enumerated.items():
            yield target, name, requests
    if refused:
        raise TaskFileError("\n".join(refused))


def _enumerated(
    folder: EvaluationDir, target: Target, name: str, requests: list[Instance], number: int
) -> TaskPlan:
    """The task's plan without shards; its documents are written."""
    file = file_name(number, name)
    return TaskPlan(
        task=name,
        target=target.name,
        file=file,
        documents=len({request.doc_id for request in requests}),
        requests=len(requests),
        num_fewshot=target.tasks[name].get_config("num_fewshot"),
        requests_sha256=requests_sha256(requests),
        documents_kept=write_documents(documents_path(folder, file), target.tasks[name].eval_docs),
        runs_code=bool(getattr(target.tasks[name], "UNSAFE_CODE", False)),
        shards=[],
    )


def _done(evaluation: EvaluationDir, tasks: list[TaskRows]) -> list[dict[Range, str]]:
    """Of each task, the shards that are there."""
    there = names_in(evaluation.responses_dir, unused_dir(evaluation))
    return [rows.done(there) for rows in tasks]


def _shards(
    rows: TaskRows, done: dict[Range, str], cuts: list[Cut], starts: list[int]
) -> list[ShardPlan]:
    """A task's shards in the order of its rows, those that are done among them."""
    meant = {c.rows: (c.worker, c.expected_s) for c in cuts}
    shards = []
    for span in sorted({*done, *meant}):
        start, stop = span
        worker, expected_s = meant.get(span, ("", 0.0))
        shard = ShardPlan(
            name=rows.name(span),
            request_type=rows.rows[start].request_type,
            start=start,
            stop=stop,
            start_bytes=starts[start],
            stop_bytes=starts[stop],
            responses=sum(row.repeats for row in rows.rows[start:stop]),
            expected_s=expected_s,
            worker=worker,
        )
        shards.append(shard)
    return shards


def _render_targets(
    config: EvaluateConfig, evaluation: EvaluationDir, tasks_dir: Path, heldout_dir: Path
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """What is asked, what is not and why, and the file of each that is asked. Its YAML files are written."""
    try:
        catalog = build_catalog(config.task_dirs)
        left_out = _without_documents(catalog, config.tasks, heldout_dir)
        targets = [name for name in config.tasks if name not in left_out]
        entries = checked_entries(catalog, targets)
    except ConfigError as error:
        raise TaskFileError(str(error)) from error
    for name, reason in left_out.items():
        print(f"evaluation task {name} is left out: {reason}", file=sys.stderr, flush=True)
    if not targets:
        raise EvaluationError("no evaluation task has a document: there is nothing to evaluate")
    # Checkpoints of one run share it; an evaluation that stands alone keeps to its folder.
    in_run = step_of_folder(evaluation.path) is not None
    cache_dir = (evaluation.path.parent if in_run else evaluation.path) / _DATASETS_CACHE
    render(entries, tasks_dir, heldout_dir, cache_dir)
    files = {entry.name: str(entry.path) for entry in entries}
    return targets, left_out, {name: files.get(name, f"tag {name}") for name in targets}


def _without_documents(catalog: Catalog, names: list[str], heldout_dir: Path) -> dict[str, str]:
    """Those of Overland's own tasks for which the held-out text gave no documents."""
    left_out: dict[str, str] = {}
    for name in names:
        entry = catalog.entry(name)
        if entry is None or not entry.is_own:
            continue
        path = heldout_file(entry, heldout_dir)
        if not path.is_file():
            raise EvaluationError(
                f"evaluation task {name!r}: {path} is missing, which data preparation writes"
            )
        with open(path, "rb") as file:
            if not any(line.strip() for line in file):
                left_out[name] = f"{path} has no documents"
    return left_out


def _refuse_twice(name: str, tasks: list[TaskPlan]) -> None:
    if any(task.task == name for task in tasks):
        raise EvaluationError(
            f"evaluation task {name!r} is in two of evaluate.tasks: name one of the two"
        )
