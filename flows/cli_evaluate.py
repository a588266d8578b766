"""`overland evaluate`: the checkpoints of a run, or any model in Hugging Face's format."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs.errors import (
    EXIT_OK,
    EXIT_RUN_FAILED,
    EvaluationError,
    InputError,
    OverlandError,
)
from configs.files import resolved
from configs.full_disk import full_disk
from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, RunDir
from configs.schema import LauncherConfig
from configs.writable import check_writable
from flows.cli_evaluate_options import (
    checked_config,
    gpus_of,
    launcher_of,
    refuse_no_run,
    refuse_unused,
)
from flows.cli_options import Json
from tasks.evaluate.folder import (
    begun,
    evaluate_folder,
    how_far,
    is_evaluation,
    is_model,
    rescore,
    subject_of,
)

_OF_MODEL = "Of a model's folder: "


def evaluate(
    context: typer.Context,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR|MODEL",
            help="A run directory; or a folder with a model in Hugging Face's format; or the folder "
            "of such a model's evaluation.",
        ),
    ],
    step: Annotated[
        list[int] | None, typer.Option(help="Of a run: only this step's checkpoint.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="A,B,C", help=_OF_MODEL + "lm-eval tasks or groups.")
    ] = None,
    task_dir: Annotated[
        list[Path] | None, typer.Option(help=_OF_MODEL + "a folder of lm-eval YAML tasks.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help=_OF_MODEL + "where it is kept. [default: evaluations/NAME]"),
    ] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="Examples before each question.")] = None,
    limit: Annotated[int | None, typer.Option(help="Documents per task.")] = None,
    bootstrap: Annotated[
        int, typer.Option(help="Resamples for standard errors without a closed form; 0: none.")
    ] = 100_000,
    batch_size: Annotated[int, typer.Option(help="Requests that are answered together.")] = 1,
    backend: Annotated[str, typer.Option(help="hf or vllm.")] = "hf",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    gpus: Annotated[str, typer.Option(metavar="all|none|0,1", help="A worker on each.")] = "all",
    workers: Annotated[int, typer.Option(help="Worker processes, without GPUs.")] = 1,
    threads: Annotated[int, typer.Option(help="Compute threads of such a worker.")] = 1,
    launcher: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help=_OF_MODEL + "jobs as this config's `launcher` says, on Slurm too. [default: here]",
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Of a cluster: at most so many infer.")] = 1,
    scorers: Annotated[int, typer.Option(help="Tasks that are scored at the same time.")] = 1,
    stage_mib_per_s: Annotated[
        float | None, typer.Option(help="Read the model no faster than this.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an evaluation as it was begun.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--rescore", help="Only score stored responses, by the tasks as they are now."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Evaluate the checkpoints of a run that have no scores yet, or any model."""
    target = resolved(target)
    if resume and again:
        raise InputError(
            "give --resume or --rescore: the first asks the model what is not answered yet, the "
            "second only scores what is"
        )
    if not os.path.exists(target):  # noqa: PTH110 (no error where it may not look)
        raise InputError(
            f"{target} does not exist: give a run directory, a folder with a model in Hugging Face's "
            "format (nothing is downloaded), or the folder of its evaluation"
        )
    if not is_model(target) and not is_evaluation(target):
        refuse_no_run(target)
        refuse_unused(
            context,
            {"step", "again"},
            f"{target} is no model; a run's config says that, and a run always goes on",
        )
        _evaluate_run(target, step, again=again, json=json)
        return
    if step:
        raise InputError(f"--step is for a run, and {target} is a model or its evaluation")
    folder = target if is_evaluation(target) else out or Path("evaluations") / target.name
    folder = resolved(folder)
    with ExitStack() as undone:
        if resume or again:
            used = {"again"} if again else {"resume", "launcher"}
            used |= set() if is_evaluation(target) else {"out"}
            said = "--resume and --rescore take what the evaluation was begun with"
            refuse_unused(context, used, said)
            where, evaluation = launcher_of(launcher), _evaluation(folder)
        elif is_evaluation(target):
            raise InputError(
                f"{target} is an evaluation already: give --resume or --rescore with it"
            )
        elif tasks is None:
            raise InputError("say which tasks: --tasks a,b,c")
        else:
            where = launcher_of(launcher)
            values = {
                "tasks": [name.strip() for name in tasks.split(",") if name.strip()],
                "task_dirs": [resolved(path) for path in task_dir or []],
                "num_fewshot": num_fewshot,
                "limit": limit,
                "bootstrap_iterations": bootstrap,
                "batch_size": batch_size,
                "backend": backend,
                "dtype": dtype,
                "cuda_devices": gpus_of(gpus, where),
                "workers": workers,
                "nodes": nodes,
                "cpu_threads": threads,
                "scorers": scorers,
                "stage_mib_per_s": stage_mib_per_s,
            }
            if values["cuda_devices"]:
                unused = {"workers", "threads"}
                refuse_unused(
                    context,
                    set(context.params) - unused,
                    "there is a worker on each GPU: give --gpus none",
                )
            if nodes > 1 and (where is None or where.kind != "slurm"):
                raise InputError("--nodes is for a cluster: give a config for it with --launcher")
            begin = begun(folder, target, checked_config(values), where)
            evaluation = undone.enter_context(begin)
        scores = _scores(evaluation, where, again=again)
    _report(scores, folder, json=json)
    raise typer.Exit(EXIT_RUN_FAILED if scores.failed else EXIT_OK)


def _scores(
    evaluation: EvaluationDir, where: LauncherConfig | None, *, again: bool
) -> EvaluationScores:
    """Of the model, evaluated or only scored anew. A Ctrl-C is told what is kept, and how to go on."""
    folder = evaluation.path
    where = where or subject_of(folder).launcher
    option = "--rescore" if again else "--resume"
    with _said_when_ended(evaluation, ["overland", "evaluate", str(folder), option]):
        if again:
            return rescore(evaluation, [str(folder)], _say)
        if where is None:
            return evaluate_folder(evaluation, _say)
        # Prefect is imported only where jobs are submitted.
        from tasks.evaluate.task import evaluate_on

        return evaluate_on(where, evaluation, _say)


@contextmanager
def _said_when_ended(evaluation: EvaluationDir, command: list[str]) -> Iterator[None]:
    """Say, when Ctrl-C ends the block, what is kept and by which command it goes on; of a full disk, which."""
    try:
        yield
    except KeyboardInterrupt:  # typer turns it into exit code 130
        _say(
            f"interrupted ({how_far(evaluation)}): what is done is kept; "
            f"to go on: {shlex.join(command)}"
        )
        raise
    except OSError as error:
        if (full := full_disk(error)) is None:
            raise
        raise EvaluationError(full) from error


def _evaluate_run(run_dir: Path, steps: list[int] | None, *, again: bool, json: bool) -> None:
    # Prefect is imported only where a flow is run.
    if again:
        _rescore_run(run_dir, steps, json=json)
        return
    from flows.cli import _report as report
    from flows.cli import _with_progress as with_progress
    from flows.evaluate import evaluate as evaluate_flow
    from flows.session import config_of, summarize

    config = config_of(run_dir)
    done = with_progress(config, lambda: evaluate_flow(run_dir, steps))
    summary = summarize(RunDir(config.resolved_run_dir()), config)
    report(summary, json=json)
    unscored = [task for task in summary.unscored_tasks if not steps or task.step in steps]
    raise typer.Exit(EXIT_OK if all(done.values()) and not unscored else EXIT_RUN_FAILED)


def _rescore_run(run_dir: Path, steps: list[int] | None, *, json: bool) -> None:
    run = RunDir(run_dir)
    if not run.config_path.is_file():
        raise InputError(f"{run_dir} is no run directory: it has no config.yaml")
    there = [e for e in run.evaluations() if e.inferred_path.is_file()]
    wanted = [e for e in there if steps is None or e.step in steps]
    missing = set(steps or []) - {e.step for e in there}
    if missing or not wanted:
        what = f"of step {min(missing)}" if missing else "of any step"
        raise InputError(f"{run_dir} has no stored responses {what}: evaluate it first")
    unscored = False
    failed: list[OverlandError] = []
    for evaluation in wanted:
        where = [str(run_dir), str(evaluation.step)]
        command = ["overland", "evaluate", where[0], "--step", where[1], "--rescore"]
        try:
            with _said_when_ended(evaluation, command):
                scores = rescore(evaluation, where, _say)
        except OverlandError as error:  # the other steps can be scored all the same
            failed.append(error)
            _say(f"step {evaluation.step} is not scored anew: {error}")
            continue
        _report(scores, evaluation.path, json=json)
        unscored |= bool(scores.failed)
    if failed:  # wrong input only where nothing was done
        is_input = len(failed) == len(wanted)
        raise typer.Exit(failed[0].exit_code if is_input else EXIT_RUN_FAILED)
    raise typer.Exit(EXIT_RUN_FAILED if unscored else EXIT_OK)


def _evaluation(folder: Path) -> EvaluationDir:
    subject_of(folder)
    check_writable(folder, hint="it must be writable to go on there")
    return EvaluationDir(folder, step=0)


def _report(scores: EvaluationScores, folder: Path, *, json: bool) -> None:
    if json:
        typer.echo(scores.model_dump_json())
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("task")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("stderr", justify="right")
    for row in scores.scores:
        stderr = "" if row.stderr is None else f"{row.stderr:.4f}"
        table.add_row(Text(row.task), Text(row.metric), f"{row.value:.4f}", stderr)
    console = Console()
    console.print(table)
    console.print(Text(f"kept in {folder}"), soft_wrap=True)  # a path that can be copied
    for name, reason in scores.failed.items():
        _say(f"{name} lacks scores: {reason}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
