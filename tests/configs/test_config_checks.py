"""Checks across sections: what is refused, and the numbers that are offered instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.checks import check_config, check_launchable
from configs.errors import ConfigError
from configs.schema import RunConfig

CONFIG: dict[str, Any] = {
    "data": {"paths": ["corpus.txt"]},
    "model": {
        "num_layers": 4,
        "hidden_size": 128,
        "ffn_hidden_size": 344,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "sequence_length": 128,
    },
    "parallel": {"tensor": 2, "pipeline": 2, "data": 2},
    "train": {"steps": 200, "global_batch_size": 16, "micro_batch_size": 4},
    "checkpoint": {"interval_steps": 50},
    "launcher": {"processes_per_node": 8},
}


def make(**changes: Any) -> RunConfig:
    """CONFIG with keys like model__num_layers=3 changed."""
    values = {section: dict(keys) for section, keys in CONFIG.items()}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return RunConfig.model_validate(values)


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_config(make(**changes))
    return str(caught.value)


def test_config_that_fits_is_accepted() -> None:
    check_config(make())
    check_config(make(parallel__sequence=True, parallel__recompute_layers=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"launcher__processes_per_node": 12},
            "parallel: tensor 2 x pipeline 2 x data 2 = 8 processes, but launcher.nodes 1 x "
            "launcher.processes_per_node 12 = 12: parallel.data=3 would fit",
        ),
        (
            {"launcher__processes_per_node": 6},
            "parallel: tensor 2 x pipeline 2 x data 2 = 8 processes, but launcher.nodes 1 x "
            "launcher.processes_per_node 6 = 6: parallel.tensor x parallel.pipeline must divide 6",
        ),
        (
            {"parallel__tensor": 4, "parallel__data": 1},
            "parallel.tensor (4) must divide model.num_query_groups (2): 2 would",
        ),
        (
            {"parallel__tensor": 4, "parallel__data": 1, "model__ffn_hidden_size": 342},
            "parallel.tensor (4) must divide model.num_query_groups (2) and model.ffn_hidden_size "
            "(342): 2 would",
        ),
        (
            {"parallel__pipeline": 4, "parallel__data": 1, "model__num_layers": 6},
            "parallel.pipeline (4) must divide model.num_layers (6): 3 or 6 would",
        ),
        (
            {"model__num_attention_heads": 6},
            "model.num_attention_heads (6) must divide model.hidden_size (128): 4 or 8 would",
        ),
        (
            {"model__hidden_size": 20},
            "model.hidden_size / model.num_attention_heads is 5, but rotary embeddings need an even "
            "number: a hidden size of 24 would do",
        ),
        (
            {"model__num_attention_heads": 8, "model__num_query_groups": 6},
            "model.num_query_groups (6) must divide model.num_attention_heads (8): 4 or 8 would",
        ),
        (
            {"parallel__sequence": True, "model__sequence_length": 129},
            "parallel.sequence splits model.sequence_length (129) over parallel.tensor (2): 130 "
            "tokens would fit",
        ),
        (
            {"parallel__sequence": True, "parallel__tensor": 1, "parallel__data": 4},
            "parallel.sequence needs parallel.tensor of 2 or more: set parallel.sequence=false",
        ),
        (
            {"parallel__recompute_layers": 3},
            "parallel.recompute_layers (3) is more than the 2 layers of a pipeline stage: 2 "
            "recomputes all of them",
        ),
        (
            {"train__global_batch_size": 20},
            "train.global_batch_size (20) must be a multiple of train.micro_batch_size (4) x "
            "parallel.data (2) = 8: 16 or 24 would fit",
        ),
        (
            {"train__global_batch_size": 4},
            "train.global_batch_size (4) must be a multiple of train.micro_batch_size (4) x "
            "parallel.data (2) = 8: 8 would fit",
        ),
        (
            {"train__warmup_steps": 200},
            "train.warmup_steps (200) must be less than train.steps (200): 20 would fit",
        ),
        (
            {"train__min_learning_rate": 0.1},
            "train.min_learning_rate (0.1) must be at most train.learning_rate (0.001): 0.0001 would fit",
        ),
        (
            {"checkpoint__interval_steps": 500},
            "checkpoint.interval_steps (500) is more than train.steps (200), so a failure would lose "
            "everything: 50 would fit",
        ),
        (
            {"data__paths": []},
            "data.paths is empty: give files, folders or globs of .txt, .jsonl[.gz|.zst] or "
            ".parquet, like data.paths=[corpus/*.jsonl]",
        ),
        (
            {"data__tokenizer": {"path": "/none/tokenizer.json"}},
            "data.tokenizer.path: /none/tokenizer.json does not exist: give a tokenizer.json or a "
            "folder with one",
        ),
        (
            {"evaluate__tasks": []},
            "evaluate.tasks is empty: name at least one task, or set evaluate.enabled=false",
        ),
        (
            {"anomalies__spike_patience_steps": 100},
            "anomalies.spike_patience_steps (100) must be at most anomalies.spike_window_steps (64), "
            "the steps that tell what is usual: 20 would fit, or anomalies.spike_window_steps=100",
        ),
        ({"evaluate__tasks": ["a", "b", "a"]}, "evaluate.tasks names a twice: once is enough"),
        (
            {"evaluate__task_dirs": ["/none"]},
            "evaluate.task_dirs: /none is no folder: give folders of lm-eval YAML tasks",
        ),
    ],
)
def test_what_does_not_fit_together(changes: dict[str, Any], message: str) -> None:
    assert refusal(**changes) == message


def test_every_misfit_is_said_a_line_each() -> None:
    lines = refusal(
        train__warmup_steps=300, train__global_batch_size=3, data__paths=[]
    ).splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        "data.paths",
        "train.global_batch_size",
        "train.warmup_steps",
    ]


def test_pipeline_longer_than_the_model_is_refused_without_a_crash() -> None:
    message = refusal(
        parallel__pipeline=8, launcher__processes_per_node=32, parallel__recompute_layers=1
    )
    assert message == "parallel.pipeline (8) must divide model.num_layers (4): 4 would"


def test_checkpoints_without_evaluation_need_no_tasks() -> None:
    check_config(make(evaluate={"enabled": False, "tasks": []}))


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "kill", "rank": 8}, "rank (8) must be less than the 8 processes: 0 to 7"),
        (
            {"kind": "kill", "step": 201},
            "step (201) is after the last step, train.steps (200): it would never strike",
        ),
        (
            {"kind": "hang", "attempt": 12},
            "attempt (12) can never come: recovery.max_restarts (10) allows 11 attempts",
        ),
        (
            {"kind": "kill", "signal": "SIGKIL"},
            "signal ('SIGKIL') is no signal of this system: SIGKILL is one",
        ),
        (
            {"kind": "exception", "exception": "RuntimError"},
            "exception ('RuntimError') must be a built-in exception that takes a message, like "
            "RuntimeError, or one of torch, like torch.OutOfMemoryError",
        ),
        (
            {"kind": "script"},
            "script is missing: kind script needs the path of a Python file",
        ),
        ({"kind": "script", "script": "gone.py"}, "script (gone.py) is no file"),
        (
            {"kind": "full_disk", "step": 130},
            "step (130): a full disk strikes a save, and with checkpoint.interval_steps (50) there "
            "is none at this step: 100 or 150 would do",
        ),
        (
            {"kind": "full_disk", "step": 10},
            "step (10): a full disk strikes a save, and with checkpoint.interval_steps (50) there "
            "is none at this step: 50 would do",
        ),
        (
            {"kind": "slow", "step": 190, "steps": 20},
            "steps (20) from step 190 on end at step 209, after the last step, train.steps (200): "
            "11 would fit",
        ),
        (
            {"kind": "kill", "steps": 2},
            "steps (2): kill strikes once; only slow and poison_data last",
        ),
        (
            {"kind": "poison_data", "rank": 1},
            "rank: poison_data lies in the data, for all ranks and attempts: leave this out",
        ),
        (
            {"kind": "poison_data", "attempt": 2},
            "attempt: poison_data lies in the data, for all ranks and attempts: leave this out",
        ),
    ],
)
def test_fault_that_could_not_strike(fault: dict[str, Any], message: str) -> None:
    good = {"kind": "kill", "step": 3}
    assert refusal(faults=[good, {"step": 5, **fault}]) == f"faults[1].{message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": 1}, "with parallel.data = 1 there is no replica to compare the weights with"),
        ({"distributed_optimizer": True}, "whose value all replicas take over in each step"),
    ],
)
def test_corruption_that_no_replica_could_show(changes: dict[str, Any], message: str) -> None:
    fault = {"kind": "corrupt_weights", "step": 5}
    check_config(make(faults=[fault]))
    parallel = {**CONFIG["parallel"], **changes}
    launcher = {"processes_per_node": 8 * changes.get("data", 2) // 2}
    text = refusal(faults=[fault], parallel=parallel, launcher=launcher)
    assert text.startswith("faults[0].kind (corrupt_weights): ") and message in text


@pytest.mark.parametrize(
    "name", ["os.system", "KeyboardInterrupt", "UnicodeDecodeError", "print", "torch."]
)
def test_exception_that_cannot_be_raised_with_a_message(name: str) -> None:
    fault = {"kind": "exception", "step": 5, "exception": name}
    assert refusal(faults=[fault]).startswith(f"faults[0].exception ({name!r}) must be a built-in")


@pytest.mark.parametrize("name", ["MemoryError", "ConnectionError", "torch.OutOfMemoryError"])
def test_exception_that_can_be_raised(name: str) -> None:
    check_config(make(faults=[{"kind": "exception", "step": 5, "exception": name}]))


def test_full_disk_at_the_last_save_can_strike() -> None:
    fault = {"kind": "full_disk", "step": 170}
    check_config(make(train={**CONFIG["train"], "steps": 170}, faults=[fault]))


def test_fault_is_checked_without_importing_what_it_names(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "innocent.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    fault = {"kind": "exception", "step": 5, "exception": "innocent.Error"}
    assert "must be a built-in exception" in refusal(faults=[fault])


# --- memory and launcher --------------------------------------------------------------------------

BIG = {
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "sequence_length": 4096,
}


def test_model_too_large_for_the_gpu_names_what_would_fit() -> None:
    message = refusal(
        model=BIG,
        parallel={"data": 64},
        train={"global_batch_size": 128, "micro_batch_size": 2},
        launcher={"nodes": 8, "processes_per_node": 8, "gpu_memory_gib": 80},
        checkpoint={"interval_steps": 100},
    )
    assert message == (
        "the model needs about 152.6 GiB on each GPU (weights 13.1 GiB, gradients 26.3 GiB, "
        "optimizer 78.8 GiB, activations 34.5 GiB), but of launcher.gpu_memory_gib (80) about 73.6 GiB can be used: "
        "parallel.distributed_optimizer=true train.micro_batch_size=1 would need 57.9 GiB"
    )


def test_offered_changes_make_the_model_fit() -> None:
    check_config(
        make(
            model=BIG,
            parallel={"data": 64, "distributed_optimizer": True},
            train={"global_batch_size": 128, "micro_batch_size": 1},
            launcher={"nodes": 8, "processes_per_node": 8, "gpu_memory_gib": 80},
            checkpoint={"interval_steps": 100},
        )
    )


def test_model_too_large_for_any_setting_says_so() -> None:
    message = refusal(model=BIG, parallel={"data": 8}, launcher__gpu_memory_gib=24,
                      train__global_batch_size=32)  # fmt: skip
    assert message.endswith(
        "a larger parallel.tensor or parallel.pipeline, on more GPUs, or a smaller model would fit"
    )


def test_local_launcher_runs_on_one_machine() -> None:
    config = make(launcher={"nodes": 2, "processes_per_node": 4})
    check_config(config)
    with pytest.raises(ConfigError, match=r"launcher\.nodes is 2, but the local launcher"):
        check_launchable(config)
    check_launchable(make())


# --- tracking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [
        None,
        "",
        "http://127.0.0.1:5000",
        "https://mlflow.example/x",
        "sqlite:////runs/mlflow.db",
        "postgresql://db.example/mlflow",
        "postgresql+psycopg2://me:secret@db.example/mlflow",
        "mysql+pymysql://db.example/mlflow",
        "mssql+pyodbc://db.example/mlflow",
        "databricks",
        "databricks://profile",
    ],
)
def test_tracking_uris_that_mlflow_knows(uri: str | None) -> None:
    check_config(make(tracking__uri=uri))


@pytest.mark.parametrize("scheme", ["ftp", "htpp", "postgres", "uc"])
def test_tracking_uri_of_an_unknown_scheme(scheme: str) -> None:
    assert refusal(tracking__uri=f"{scheme}://me:secret@host/x") == (
        f"tracking.uri begins with {scheme}://, which MLflow does not know: it knows http, https, "
        "sqlite, postgresql, mysql, mssql, databricks, like sqlite:///PATH or http://HOST:PORT"
    )


@pytest.mark.parametrize(
    "uri", ["garbage", "/runs/mlruns", "file:/runs", "file:///runs", "host:5000"]
)
def test_tracking_uri_that_is_a_plain_path(uri: str) -> None:
    assert refusal(tracking__uri=uri) == (
        "tracking.uri is a plain path, to which MLflow does not write any more: give "
        "sqlite:///PATH for a file, or http://HOST:PORT for a server"
    )
    check_config(make(tracking__uri=uri, tracking__enabled=False))
