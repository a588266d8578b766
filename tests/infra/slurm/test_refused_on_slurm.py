"""A request that a real cluster refuses: wrong input at first, and the mended config goes on in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.rundir import RunDir
from tests.flows.conftest import prefect_server  # noqa: F401  (a fixture)
from tests.flows.helpers import overland
from tests.flows.test_bad_input import refused
from tests.infra.slurm.test_pretrain_on_slurm import slurm_run

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.usefixtures("prefect_server")]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("launcher.slurm.partition=nope", "launcher.slurm.partition: partition 'nope' does not exist"),
        ("launcher.slurm.memory_per_node_gib=4000", "no node can ever satisfy it: 2 node(s) with 1"),
        ("launcher.slurm.partition=short", "partition 'short' can never give 2 node(s)"),
    ],
)  # fmt: skip
def test_the_first_job(slurm_site: Any, tmp_path: Path, override: str, words: str) -> None:
    config = slurm_run(slurm_site, tmp_path)
    prepared = overland("prepare", config)
    assert prepared.returncode == 0, prepared.stderr
    refused(overland("pretrain", config, override), words)
    run = RunDir(tmp_path / "run")
    assert not run.attempts_dir.exists()
    assert not run.summary_path.exists()
    done = overland("pretrain", config)
    assert done.returncode == 0, done.stderr
    assert [attempt.number for attempt in run.attempts()] == [1]
