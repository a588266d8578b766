"""The small run that `overland chaos` strikes: its text, its config, and the data that all trials share."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from configs.errors import InputError, RunFailedError
from configs.files import resolved
from configs.load import load_config
from configs.rundir import RunDir
from configs.schema import RunConfig
from infra.launch import leash

STEPS = 50
INTERVAL_STEPS = 5
RANKS = 2
DOCUMENTS = 300

_NOUNS = ("river", "teacher", "engine", "clock", "student", "garden", "bridge", "letter", "train")
_VERBS = ("carries", "repairs", "remembers", "follows", "measures", "answers", "crosses", "paints")
_ADJECTIVES = ("quiet", "old", "copper", "early", "seventh", "wooden", "distant", "narrow")


def trial_folder(wanted: Path | None) -> Path:
    """The folder of all trials: the one that is wanted, which must be empty, or a new one."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="overland-chaos-"))
    try:
        folder = resolved(wanted)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"--folder {folder} is not empty: the trials need one of their own")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise InputError(
            f"--folder {wanted} cannot be made or written ({why}): give a new or an empty folder"
        ) from error
    return folder


def kept_folder(folder: Path, *, made: bool, failed: bool) -> str | None:
    """Where the trials that failed are to be seen; when none did, a folder that was made for them goes."""
    if made and not failed:
        shutil.rmtree(folder)
    return str(folder) if failed else None


def write_corpus(folder: Path, seed: int) -> Path:
    """Short English-like documents, each different."""
    draw = random.Random(seed)  # noqa: S311
    path = folder / "corpus.jsonl"
    with open(path, "w") as file:
        for number in range(DOCUMENTS):
            text = " ".join(_sentence(draw) for _ in range(12))
            file.write(json.dumps({"text": f"Document {number}. {text}"}) + "\n")
    return path


def _sentence(draw: random.Random) -> str:
    one, other = draw.choice(_NOUNS), draw.choice(_NOUNS)
    return (
        f"The {draw.choice(_ADJECTIVES)} {one} {draw.choice(_VERBS)} "
        f"the {draw.choice(_ADJECTIVES)} {other} number {draw.randrange(1000)}."
    )


def write_config(
    folder: Path, corpus: Path, seed: int, changes: Mapping[str, dict[str, Any]] | None = None
) -> Path:
    """A config whose steps take about 0.2 s on two cores, so that random moments fall between all that
    happens; limits are short, so that a trial waits for seconds where a real run waits for minutes.
    `changes` are a site's."""
    config: dict[str, Any] = {
        "name": "chaos",
        "seed": seed,
        "run_dir": str(folder / "prepared"),
        "data": {
            "paths": [str(corpus)],
            "validation_fraction": 0.1,
            "tokenizer": {"vocab_size": 512},
        },
        "model": {
            "num_layers": 4,
            "hidden_size": 128,
            "ffn_hidden_size": 344,
            "num_attention_heads": 4,
            "num_query_groups": 2,
            "sequence_length": 128,
        },
        "parallel": {"data": RANKS},
        "train": {
            "steps": STEPS,
            "global_batch_size": 16,
            "micro_batch_size": 4,
            "warmup_steps": 5,
            "validation_interval_steps": 10,
            "validation_batches": 1,
            "precision": "fp32",
            "process_group_timeout_s": 60,
        },
        "checkpoint": {
            "interval_steps": INTERVAL_STEPS,
            "memory": "auto",
            "save_timeout_s": 6,
            "save_attempts": 3,
        },
        "recovery": {
            "max_restarts": 50,
            "max_restarts_per_cause": 20,
            "backoff_s": 0.2,
            "hang_timeout_s": 20,
            "hang_factor": 20,
            "min_hang_timeout_s": 6,
            "startup_timeout_s": 60,
        },
        "evaluate": {"enabled": False},
        "tracking": {"enabled": False},
        "launcher": {"processes_per_node": RANKS, "cpu_threads": 1},
    }
    for section, values in (changes or {}).items():
        config[section] |= values
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def config_for(config_path: Path, run_dir: Path) -> RunConfig:
    """The config as a trial's command reads it."""
    return load_config(config_path, [override(run_dir)])


def override(run_dir: Path) -> str:
    """The argument by which a trial has a run directory of its own."""
    return f"run_dir={json.dumps(str(run_dir))}"


def flow_command(stage: str, config_path: Path, run_dir: Path, *overrides: str) -> list[str]:
    """The real command, on a leash: it does not outlive this process."""
    return [
        *(sys.executable, str(Path(leash.__file__).resolve()), "-m", "flows.cli"),
        *(stage, str(config_path), override(run_dir), *overrides),
    ]


def prepare(config_path: Path, run_dir: Path, environment: dict[str, str]) -> None:
    """Make the data set, once for all trials."""
    command = flow_command("prepare", config_path, run_dir)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailedError(f"the data of the trials could not be prepared: {done.stderr[-2000:]}")


def copy_prepared(source: RunDir, target: RunDir) -> None:
    """A run directory in which the data is there, and nothing has been trained."""
    target.locks_dir.mkdir(parents=True)
    shutil.copytree(source.data_dir, target.data_dir)


def trial_environment(prefect_home: Path, prefect_url: str | None = None) -> dict[str, str]:
    """The environment of flows: with a Prefect database, and maybe a server, of the trials' own."""
    others = ("PREFECT_API_", "PREFECT_SERVER_DATABASE_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    environment |= {"PREFECT_HOME": str(prefect_home), "PYTHONSAFEPATH": "1"}
    if prefect_url is not None:
        environment["PREFECT_API_URL"] = prefect_url
    return environment
