"""`overland bench ...`: Overland beside its peers, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_options import Json

bench = typer.Typer(help="Measure Overland beside its peers.", no_args_is_help=True)


@bench.command("train")
def bench_train(json: Json = False) -> None:
    """The training loop beside a bare megatron-core loop: same model, same data, one run."""
    from flows.show.bench import print_bench
    from tasks.train.bench import bench_train as measure

    print_bench("our loop beside a bare megatron-core loop", measure(), json=json)


@bench.command("checkpoint")
def bench_checkpoint(
    saves: Annotated[int, typer.Option(help="Saves of each kind, after a first one.")] = 5,
    json: Json = False,
) -> None:
    """What a checkpoint costs training: ours beside a synchronous save, PyTorch's and megatron-core's."""
    from flows.show.bench import print_checkpoint_bench
    from tasks.train.bench_checkpoint import bench_checkpoint as measure

    print_checkpoint_bench(measure(saves=saves), json=json)


@bench.command("compress")
def bench_compress(
    size_mb: Annotated[int, typer.Option(help="Size of the log.", min=1)] = 100,
    json: Json = False,
) -> None:
    """Log compression beside Drain3: the same file, the same core."""
    from flows.show.bench import print_bench
    from tasks.diagnose.bench_compress import bench_compress as measure

    print_bench("log compression beside Drain3", measure(size_mb=size_mb), json=json)


@bench.command("diagnose")
def bench_diagnose(
    cases: Annotated[
        Path | None,
        typer.Option(help="Folder of labelled logs. [default: the regression set]"),
    ] = None,
    json: Json = False,
) -> None:
    """Diagnosis of labelled logs beside gpualert and the last error line."""
    from flows.show.bench import print_diagnosis_bench
    from tasks.diagnose.bench_diagnose import bench_diagnose as measure

    print_diagnosis_bench(measure(cases), json=json)


@bench.command("evaluate")
def bench_evaluate(
    model: Annotated[
        Path, typer.Option(metavar="DIR", help="A model's folder, in Hugging Face's format.")
    ],
    storage_mib_per_s: Annotated[
        float, typer.Option(min=0.1, help="Of the storage that the model is read from.")
    ] = 20.0,
    scale: Annotated[
        float, typer.Option(min=0.01, help="Documents of each task, times the usual number.")
    ] = 1.0,
    repeats: Annotated[
        int, typer.Option(min=1, help="Rounds; all figures are medians of them.")
    ] = 1,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also simulate each run with the measured times.")
    ] = False,
    json: Json = False,
) -> None:
    """Twelve tasks on two workers: ours beside lm_eval once a task and OpenCompass's partitioners."""
    from flows.show.bench import print_evaluation_bench
    from tasks.evaluate.bench_evaluate import bench_evaluate as measure

    figures = measure(
        model,
        storage_mib_per_s=storage_mib_per_s,
        scale=scale,
        repeats=repeats,
        simulate=simulate,
    )
    print_evaluation_bench(figures, json=json)
