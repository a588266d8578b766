"""Reads the options of `overland evaluate`, and refuses those that are wrong or have no effect."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from configs.errors import ConfigError, InputError
from configs.load import load_config
from configs.rundir import RunDir
from configs.schema import EvaluateConfig, LauncherConfig
from infra.launch import require_site
from tasks.evaluate.folder import check_gpus, visible_gpus


def refuse_unused(context: typer.Context, used: set[str], why: str) -> None:
    """InputError for options that were given and have no effect."""
    given = {n for n in context.params if _source(context, n) == "COMMANDLINE"}
    if unused := sorted(given - used - {"target", "json"}):
        options = ", ".join("--rescore" if n == "again" else f"--{_option(n)}" for n in unused)
        raise InputError(f"{options} would have no effect here: {why}")


def refuse_no_run(target: Path) -> None:
    """InputError when what is neither a model nor an evaluation is no run's directory either."""
    if not target.is_dir():
        raise InputError(
            f"{target} is no folder: give a run directory, a folder with a model in Hugging Face's "
            "format, or the folder of its evaluation"
        )
    if not os.path.isfile(RunDir(target).config_path):  # noqa: PTH113 (no error where it may not look)
        raise InputError(
            f"{target} has no config.json, so it is no model in Hugging Face's format; and no "
            "config.yaml, so it is no run either"
        )


def _source(context: typer.Context, name: str) -> str | None:
    source = context.get_parameter_source(name)
    return source.name if source is not None else None


def _option(name: str) -> str:
    return name.replace("_", "-")


def launcher_of(config: Path | None) -> LauncherConfig | None:
    """The launcher of the config that is given, which can be used; None without one."""
    if config is None:
        return None
    launcher = load_config(config, []).launcher
    require_site(launcher)
    return launcher


def gpus_of(text: str, launcher: LauncherConfig | None) -> list[int]:
    """Numbers of the GPUs that `--gpus` says; empty: the CPU."""
    if text == "all" and launcher is not None and launcher.kind == "slurm":
        return list(range(launcher.slurm.gpus_per_node))
    if text == "all":
        return visible_gpus()
    if text == "none":
        return []
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"--gpus must be all, none, or numbers like 0,1; it is {text}") from error
    on_slurm = launcher is not None and launcher.kind == "slurm"
    check_gpus(numbers, launcher.slurm.gpus_per_node if launcher and on_slurm else None)
    return numbers


def checked_config(values: dict[str, Any]) -> EvaluateConfig:
    """The config; ConfigError when a value is out of range."""
    try:
        return EvaluateConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(e) for e in error.errors())) from error


def _sentence(error: Any) -> str:
    names = {"cpu_threads": "threads", "cuda_devices": "gpus", "bootstrap_iterations": "bootstrap"}
    option = names.get(error["loc"][0], error["loc"][0])
    return f"--{_option(str(option))}: {error['msg'].lower()}, it is {error['input']!r}"
