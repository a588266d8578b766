"""The batch script, as a whole: what is in slurm_golden/ is what people see with `scontrol write`."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from infra.launch.base import JobSpec
from infra.launch.slurm_script import render

GOLDEN = Path(__file__).parent / "slurm_golden"

PLAIN = JobSpec(
    key="/runs/a/evaluations/step_1/jobs/score-1",
    name="a-score",
    argv=("/usr/bin/env", "two words", "$HOME `id` 'q'", "--", ""),
    job_dir=Path("/runs/a/job dir"),
)
RANKS = JobSpec(
    key="/runs/a/attempts/003",
    name="a-train-003",
    argv=("-m", "tasks.train.job", "/runs/a", "--attempt", "3"),
    job_dir=Path("/runs/a/attempts/003/job"),
    environment={"TOKEN": "not-in-the-script"},
    distributed=True,
    nodes=4,
    processes_per_node=8,
    grace_s=600.0,
)
EACH = JobSpec(
    key="/runs/a/attempts/003/nodecheck",
    name="a-nodecheck",
    argv=("/venv/bin/python", "-m", "tasks.recover.nodecheck_job", "/runs/a"),
    job_dir=Path("/runs/a/attempts/003/nodecheck/job"),
    each_node=True,
    nodes=4,
    more_nodes=2,
    need_nodes=("node1",),
    time_limit_s=900.0,
)
CASES = {
    "each_node": (EACH, 96, ["--interface=ib0"]),
    "plain": (PLAIN, 1, []),
    "time_limit": (dataclasses.replace(PLAIN, time_limit_s=0.5), 2, []),
    "ranks": (RANKS, 96, []),
    "ranks_with_interface": (RANKS, 96, ["--interface=ib0"]),
}


@pytest.mark.parametrize("name", CASES)
def test_script_is_the_golden_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    spec, cpus, options = CASES[name]
    text = render(spec, cpus_per_node=cpus, options=options)
    assert text == (GOLDEN / f"{name}.sh").read_text()
    assert "not-in-the-script" not in text


@pytest.mark.parametrize("name", CASES)
def test_script_is_valid_bash(name: str) -> None:
    done = subprocess.run(["bash", "-n", GOLDEN / f"{name}.sh"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_arguments_survive_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    script = render(PLAIN, cpus_per_node=1)
    (line,) = [line for line in script.splitlines() if line.startswith("exec ")]
    words = shlex.split(line)
    assert tuple(words[words.index("--") + 1 :]) == PLAIN.argv


def test_a_key_with_line_breaks_stays_a_comment() -> None:
    script = render(dataclasses.replace(PLAIN, key="a\nrm -rf /"), cpus_per_node=1)
    assert script.splitlines()[1] == "# Overland: a rm -rf /"
