"""The quickstart of docs/slurm.md, whole: training on several nodes, evaluation in its own partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.events import StepEvent
from configs.rundir import RunDir
from tests.flows.conftest import prefect_server  # noqa: F401  (a fixture)
from tests.flows.helpers import overland, write_corpus
from tests.infra.conftest import SlurmSite, bring_up

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.usefixtures("prefect_server")]

CONFIG = Path(__file__).parents[3] / "configs" / "slurm-quickstart.yaml"


NICE = 100
"""Of all jobs but training's."""


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmSite]:
    """A cluster with four nodes for training."""
    yield from bring_up(nodes=4)


def jobs_by_partition(site: SlurmSite, run: RunDir) -> dict[str, set[str]]:
    """What kinds of jobs of the run each partition has had; all of them have ended well."""
    lines = site.cluster.command("squeue", "-h", "-t", "all", "-o", "%P|%j|%T|%y|%k").splitlines()
    found: dict[str, set[str]] = {}
    for partition, name, state, nice, comment in (line.split("|", 4) for line in lines):
        if str(run.path) in comment:
            kind = name.removeprefix("slurm-quickstart-").partition("-")[0]
            found.setdefault(partition, set()).add(kind)
            assert state in ("COMPLETED", "FAILED" if kind == "train" else "COMPLETED"), name
            assert int(nice) == (0 if kind == "train" else NICE), name
    return found


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_the_quickstart(site: SlurmSite, tmp_path: Path, nodes: int) -> None:
    run = RunDir(tmp_path / "run")
    corpus = write_corpus(tmp_path)
    conf = site.cluster.settings.conf
    done = overland(
        "run",
        CONFIG,
        f"run_dir={run.path}",
        f"launcher.nodes={nodes}",
        f"parallel.data={nodes}",
        f"launcher.slurm.url={site.url}",
        f"launcher.slurm.token_file={site.token_file}",
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
        assert len(set(record.nodes) & set(site.nodes)) == nodes
    assert {row["step"] for row in summary["evaluations"]} == {20, 40}
    jobs = jobs_by_partition(site, run)
    assert jobs.pop("main") >= {"train"}
    assert jobs == {"low": {"infer"}, "cpu": {"export", "plan", "score"}}
