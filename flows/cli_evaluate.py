"""`overland evaluate`: the checkpoints of a run, or any model in Hugging Face's format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs.errors import EXIT_OK, EXIT_RUN_FAILED, ConfigError, InputError
from configs.files import resolved
from configs.load import load_config
from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, RunDir
from configs.schema import EvaluateConfig, LauncherConfig
from flows.cli_options import Json
from tasks.evaluate.folder import (
    begin,
    evaluate_folder,
    is_evaluation,
    is_model,
    rescore,
    subject_of,
    visible_gpus,
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
    if not is_model(target) and not is_evaluation(target):
        _refuse_unused(
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
    if resume or again:
        used = {"again"} if again else {"resume", "launcher"}
        used |= set() if is_evaluation(target) else {"out"}
        said = "--resume and --rescore take what the evaluation was begun with"
        _refuse_unused(context, used, said)
        where, evaluation = _where(launcher), _evaluation(folder)
    elif is_evaluation(target):
        raise InputError(f"{target} is an evaluation already: give --resume or --rescore with it")
    elif tasks is None:
        raise InputError("say which tasks: --tasks a,b,c")
    else:
        where = _where(launcher)
        values = {
            "tasks": [name.strip() for name in tasks.split(",") if name.strip()],
            "task_dirs": [resolved(path) for path in task_dir or []],
            "num_fewshot": num_fewshot,
            "limit": limit,
            "bootstrap_iterations": bootstrap,
            "batch_size": batch_size,
            "backend": backend,
            "dtype": dtype,
            "cuda_devices": _gpus(gpus, where),
            "workers": workers,
            "nodes": nodes,
            "cpu_threads": threads,
            "scorers": scorers,
            "stage_mib_per_s": stage_mib_per_s,
        }
        if values["cuda_devices"]:
            unused = {"workers", "threads"}
            _refuse_unused(
                context,
                set(context.params) - unused,
                "there is a worker on each GPU: give --gpus none",
            )
        if nodes > 1 and (where is None or where.kind != "slurm"):
            raise InputError("--nodes is for a cluster: give a config for it with --launcher")
        evaluation = begin(folder, target, _checked(values), where)
    if again:
        scores = rescore(evaluation, [str(folder)], _say)
    elif (where := where or subject_of(folder).launcher) is not None:
        # Prefect is imported only where jobs are submitted.
        from tasks.evaluate.task import evaluate_on

        scores = evaluate_on(where, evaluation, _say)
    else:
        scores = evaluate_folder(evaluation, _say)
    _report(scores, folder, json=json)
    raise typer.Exit(EXIT_RUN_FAILED if scores.failed else EXIT_OK)


def _refuse_unused(context: typer.Context, used: set[str], why: str) -> None:
    """InputError for options that were given and have no effect."""
    given = {n for n in context.params if _source(context, n) == "COMMANDLINE"}
    if unused := sorted(given - used - {"target", "json"}):
        options = ", ".join("--rescore" if n == "again" else f"--{_option(n)}" for n in unused)
        raise InputError(f"{options} would have no effect here: {why}")


def _source(context: typer.Context, name: str) -> str | None:
    source = context.get_parameter_source(name)
    return source.name if source is not None else None


def _option(name: str) -> str:
    return name.replace("_", "-")


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
    unscored: dict[str, str] = {}
    for evaluation in wanted:
        scores = rescore(evaluation, [str(run_dir), str(evaluation.step)], _say)
        _report(scores, evaluation.path, json=json)
        unscored |= scores.failed
    raise typer.Exit(EXIT_RUN_FAILED if unscored else EXIT_OK)


def _evaluation(folder: Path) -> EvaluationDir:
    subject_of(folder)
    return EvaluationDir(folder, step=0)


def _where(config: Path | None) -> LauncherConfig | None:
    return load_config(config, []).launcher if config is not None else None


def _gpus(text: str, launcher: LauncherConfig | None) -> list[int]:
    if text == "all" and launcher is not None and launcher.kind == "slurm":
        return list(range(launcher.slurm.gpus_per_node))
    if text == "all":
        return visible_gpus()
    if text == "none":
        return []
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"--gpus must be all, none, or numbers like 0,1; it is {text}") from error


def _checked(values: dict[str, Any]) -> EvaluateConfig:
    try:
        return EvaluateConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(e) for e in error.errors())) from error


def _sentence(error: Any) -> str:
    names = {"cpu_threads": "threads", "cuda_devices": "gpus", "bootstrap_iterations": "bootstrap"}
    option = names.get(error["loc"][0], error["loc"][0])
    return f"--{_option(str(option))}: {error['msg'].lower()}, it is {error['input']!r}"


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
    console.print(Text(f"kept in {folder}"))
    for name, reason in scores.failed.items():
        _say(f"{name} has no scores: {reason}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
