"""A tiny run: a corpus with structure, a model of a few thousand weights, and the command to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

SUBJECTS = ("The river", "A teacher", "Our engine", "The old clock", "Each student", "My garden")
VERBS = ("carries", "repairs", "remembers", "follows", "measures", "answers")
OBJECTS = (
    "the quiet village",
    "a copper bridge",
    "seven letters",
    "the morning train",
    "its shadow",
)


def write_corpus(folder: Path, documents: int = 240) -> Path:
    """JSON lines of short English-like documents, each different."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "corpus.jsonl"
    with open(path, "w") as file:
        for i in range(documents):
            sentences = [
                f"{SUBJECTS[(i + k) % 6]} {VERBS[(i * 7 + k * k) % 6]} "
                f"{OBJECTS[(i * 3 + k) % 5]} number {(i * 13 + k * 5) % 97}."
                for k in range(6)
            ]
            subject = SUBJECTS[i % 6].split()[-1]
            sentences.append(f"In the end everybody in town spoke about the same {subject}.")
            file.write(json.dumps({"text": f"Document {i}. " + " ".join(sentences)}) + "\n")
    return path


def tiny_config(folder: Path, **changes: Any) -> Path:
    """Write a config for two processes and twelve steps; returns its path.

    `changes` replaces whole sections' keys: train={"steps": 6}.
    """
    corpus = write_corpus(folder)
    config: dict[str, Any] = {
        "name": "tiny",
        "run_dir": str(folder / "run"),
        "data": {
            "paths": [str(corpus)],
            "validation_fraction": 0.15,
            "tokenizer": {"vocab_size": 320},
        },
        "model": {
            "num_layers": 2,
            "hidden_size": 32,
            "ffn_hidden_size": 64,
            "num_attention_heads": 4,
            "num_query_groups": 2,
            "sequence_length": 32,
        },
        "parallel": {"data": 2},
        "train": {
            "steps": 12,
            "global_batch_size": 8,
            "micro_batch_size": 2,
            "warmup_steps": 2,
            "validation_interval_steps": 4,
            "validation_batches": 1,
        },
        "checkpoint": {"interval_steps": 4},
        "recovery": {"backoff_s": 0.1},
        "evaluate": {"enabled": False},
        "tracking": {"enabled": False},
        "launcher": {"processes_per_node": 2, "cpu_threads": 1},
    }
    for section, values in changes.items():
        if isinstance(values, dict):
            config[section] = {**config.get(section, {}), **values}
        else:
            config[section] = values
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def overland(*arguments: str | Path, timeout_s: float = 550) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ | {"COLUMNS": "100"},
    )


def start_overland(*arguments: str | Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the command as a terminal does: leader of a group of its own, with a Prefect of its own."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *map(str, arguments)],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"},
        )


def wait_for(condition: Callable[[], object], flow: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the condition holds, while the flow lives."""
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline and flow.poll() is None, log.read_text()
        time.sleep(0.02)


def rank_processes(run_dir: Path) -> dict[int, psutil.Process]:
    """The live ranks of the run's training job."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            rank = ""
            if "tasks.train.job" in command and str(run_dir) in command:
                rank = process.environ().get("RANK", "")
            if rank.isdigit():
                found[int(rank)] = process
    return found
