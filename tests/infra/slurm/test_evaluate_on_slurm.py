"""`overland evaluate MODEL --launcher CONFIG` on a real cluster: queued, killed, resumed, and a node lost."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from configs.rundir import EvaluationDir, read_record
from infra.launch.slurm_record import SlurmFiles, SlurmRecord, read
from tasks.evaluate.chaos import scores_of, shards_computed_twice
from tasks.evaluate.live_plan import LivePlan, live_plan_path
from tasks.evaluate.times import read_times
from tests.flows.helpers import overland, start_overland, wait_for
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, tasks, and the scores that one machine gives."""
    folder = tmp_path_factory.mktemp("evaluate_on_slurm")
    command = [sys.executable, "-m", "tasks.evaluate.chaos", str(folder), "0"]
    subprocess.run(command, check=True)
    done = overland(*arguments(folder, folder / "here"), "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    return folder


def arguments(folder: Path, out: Path) -> list[str | Path]:
    return [
        "evaluate", folder / "model", "--tasks", "choice,copy,text", "--task-dir", folder / "tasks",
        "--out", out, "--bootstrap", "100", "--gpus", "none",
    ]  # fmt: skip


def config_of_site(site: Any, folder: Path) -> Path:
    slurm = {
        "url": site.url,
        "token_file": str(site.token_file),
        "scontrol": ["env", f"SLURM_CONF={site.cluster.settings.conf}", "scontrol"],
        "network_interface": "lo",
        "memory_per_node_gib": 4,
        "poll_interval_s": 0.5,
        "partition": "main",
        "cpu_partition": "cpu",
    }
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump({"launcher": {"kind": "slurm", "slurm": slurm}}))
    return path


def job_of(out: Path, stage: str) -> int | None:
    record = read(SlurmFiles(EvaluationDir(out, 0).job_dir(f"{stage}-1")).record, SlurmRecord)
    return record.job_id if record is not None else None


def show(site: Any, job_id: int | None) -> dict[str, str]:
    words = site.cluster.command("scontrol", "show", "job", str(job_id), "--oneliner").split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def workers(out: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if "tasks.evaluate.worker" in command and str(out) in command:
                found.append(process)
    return found


def planned_workers(out: Path) -> set[str]:
    live = read_record(live_plan_path(EvaluationDir(out, 0)), LivePlan)
    return live.worker_names if live is not None else set()


def test_a_model_is_evaluated_on_two_nodes_though_the_command_is_killed(
    slurm_site: Any, place: Path, tmp_path: Path
) -> None:
    """While inference is in the queue, scoring holds no CPU."""
    out, log = tmp_path / "out", tmp_path / "log"
    nodes = len(slurm_site.nodes)
    blocker = slurm_site.cluster.command(
        "sbatch", "--parsable", "--exclusive", f"--nodes={nodes}", "--partition=main",
        "--output=/dev/null", "--wrap", "sleep 600",
    ).strip()  # fmt: skip
    site = ["--launcher", config_of_site(slurm_site, tmp_path)]
    command = start_overland(*arguments(place, out), *site, "--nodes", "2", log=log)
    wait_for(lambda: job_of(out, "score"), command, log)
    infer_id, score_id = job_of(out, "infer"), job_of(out, "score")
    wait_for(lambda: show(slurm_site, score_id)["Reason"] == "Dependency", command, log)
    assert show(slurm_site, infer_id)["JobState"] == "PENDING"
    command.kill()
    command.wait()
    slurm_site.cluster.command("scancel", blocker)

    done = overland("evaluate", out, "--resume", "--json", timeout_s=400)
    assert done.returncode == 0, done.stderr
    assert scores_of(out) == scores_of(place / "here")
    assert (job_of(out, "infer"), job_of(out, "score")) == (infer_id, score_id)
    jobs = {path.name for path in EvaluationDir(out, 0).job_dir("").iterdir()}
    assert jobs == {"plan-1", "infer-1", "score-1"}
    infer, score = show(slurm_site, infer_id), show(slurm_site, score_id)
    assert (infer["NumNodes"], score["NumNodes"], score["Partition"]) == ("2", "1", "cpu")
    # On a node that answers nothing, and before those that do were free.
    planned = show(slurm_site, job_of(out, "plan"))
    assert (planned["NumNodes"], planned["Partition"]) == ("1", "cpu")
    assert planned["EndTime"] <= infer["StartTime"]
    assert score["StartTime"] >= infer["StartTime"]
    times = read_times(EvaluationDir(out, 0))
    staged = {t.worker.rpartition("-")[0].rpartition("-")[0] for t in times if t.kind == "stage"}
    assert {name.removeprefix("crew-") for name in staged} <= set(slurm_site.nodes)
    assert len(staged) == 2, "each node has its own precursor"
    assert shards_computed_twice(out) == []


def test_when_a_node_is_lost_the_other_one_answers_the_rest(
    slurm_site: Any, place: Path, tmp_path: Path
) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    lost = slurm_site.nodes[1]
    site = ["--launcher", config_of_site(slurm_site, tmp_path)]
    command = start_overland(*arguments(place, out), *site, "--nodes", "2", log=log)
    names = {f"{node}-cpu0" for node in slurm_site.nodes[:2]}
    stopped: dict[int, psutil.Process] = {}

    def both_are_planned_for() -> bool:
        for process in workers(out):  # so that work is left, whatever the machine's pace
            stopped[process.pid] = process
            process.suspend()
        return planned_workers(out) == names and len(stopped) == 2

    wait_for(both_are_planned_for, command, log)
    slurm_site.cluster.kill_node(lost)
    try:
        left = names - {f"{lost}-cpu0"}
        wait_until(lambda: planned_workers(out) == left, "the loss to be noticed")
        for process in stopped.values():
            with suppress(psutil.NoSuchProcess):
                process.resume()
        assert command.wait(300) == 0, log.read_text()
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)
    assert json.loads((out / "scores.json").read_text())["scores"]
    assert scores_of(out) == scores_of(place / "here")
    assert shards_computed_twice(out) == []
