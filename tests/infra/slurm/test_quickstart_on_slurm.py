"""The quickstart of docs/slurm.md, whole: training on several nodes, evaluation in its own partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from configs.events import StepEvent
from configs.rundir import RunDir
from tests.flows.conftest import prefect_server  # noqa: F401  (a fixture)
from tests.flows.helpers import overland, write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.usefixtures("prefect_server")]

CONFIG = Path(__file__).parents[3] / "configs" / "slurm-quickstart.yaml"


def jobs_by_partition(site: Any, run: RunDir) -> dict[str, set[str]]:
    """What kinds of jobs of the run each partition has had; all of them have ended well."""
    lines = site.cluster.command("squeue", "-h", "-t", "all", "-o", "%P|%j|%T|%k").splitlines()
    found: dict[str, set[str]] = {}
    for partition, name, state, comment in (line.split("|", 3) for line in lines):
        if str(run.path) in comment:
            kind = name.removeprefix("slurm-quickstart-").partition("-")[0]
            found.setdefault(partition, set()).add(kind)
            assert state in ("COMPLETED", "FAILED" if kind == "train" else "COMPLETED"), name
    return found


@pytest.mark.parametrize("nodes", [2, 3])
def test_the_quickstart(slurm_site: Any, tmp_path: Path, nodes: int) -> None:
    run = RunDir(tmp_path / "run")
    corpus = write_corpus(tmp_path)
    conf = slurm_site.cluster.settings.conf
    done = overland(
        "run",
        CONFIG,
        f"run_dir={run.path}",
        f"launcher.nodes={nodes}",
        f"parallel.data={nodes}",
        f"launcher.slurm.url={slurm_site.url}",
        f"launcher.slurm.token_file={slurm_site.token_file}",
        f"launcher.slurm.scontrol=[env, SLURM_CONF={conf}, scontrol]",
        "launcher.slurm.network_interface=lo",
        "launcher.slurm.poll_interval_s=0.5",
        # Smaller still than the real one, and without a download.
        "data.packages=[]",
        f"data.paths=[{corpus}]",
        "data.tokenizer.vocab_size=320",
        "data.validation_fraction=0.15",
        "model.hidden_size=64",
        "model.ffn_hidden_size=128",
        "model.sequence_length=32",
        f"train.global_batch_size={4 * nodes}",
        "train.micro_batch_size=2",
        "train.steps=40",
        "train.validation_interval_steps=20",
        "checkpoint.interval_steps=20",
        "faults=[{kind: kill, step: 30, rank: 1}]",
        "recovery={backoff_s: 0.1, node_check: {start_timeout_s: 90, slow_ratio: 1000}}",
        "evaluate.limit=4",
        f"tracking.uri=sqlite:///{tmp_path}/mlflow.db",
        "--json",
        timeout_s=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    first, second = run.attempts()
    steps = [event.step for event in second.events() if isinstance(event, StepEvent)]
    assert steps == list(range(21, 41)), "back to the checkpoint, and on to the end"
    for attempt in (first, second):
        record = attempt.record()
        assert record is not None
        assert len(set(record.nodes) & set(slurm_site.nodes)) == nodes
    assert {row["step"] for row in summary["evaluations"]} == {20, 40}
    jobs = jobs_by_partition(slurm_site, run)
    assert jobs.pop("main") >= {"train"}
    assert jobs == {"low": {"infer"}, "cpu": {"export", "score"}}
