"""`overland pretrain` on two nodes of a real cluster, through the flow, with a node lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from configs.errors import EXIT_RUN_FAILED
from configs.events import StartEvent, StepEvent
from configs.progress import progress_folders
from configs.rundir import AttemptDir, RunDir
from tasks.recover.nodecheck_run import read_report
from tests.flows.conftest import prefect_server  # noqa: F401  (a fixture)
from tests.flows.helpers import overland, start_overland, tiny_config, wait_for

QUICK_CHECK = {"round_timeout_s": 15.0, "start_timeout_s": 60.0, "slow_ratio": 1000.0}

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.usefixtures("prefect_server")]


def slurm_run(
    site: Any, folder: Path, nodes: int = 2, *, partition: str = "main", **changes: Any
) -> Path:
    """A tiny run with one process on each of some nodes."""
    slurm = {
        "url": site.url,
        "token_file": str(site.token_file),
        "scontrol": ["env", f"SLURM_CONF={site.cluster.settings.conf}", "scontrol"],
        "network_interface": "lo",
        "memory_per_node_gib": 4,
        "poll_interval_s": 0.5,
        "partition": partition,
    }
    launcher = {"kind": "slurm", "nodes": nodes, "processes_per_node": 1, "slurm": slurm}
    return tiny_config(folder, launcher=launcher, **changes)


def steps_of(attempt: AttemptDir) -> list[int]:
    return [event.step for event in attempt.events() if isinstance(event, StepEvent)]


def losses_of(attempt: AttemptDir) -> dict[int, float]:
    return {event.step: event.loss for event in attempt.events() if isinstance(event, StepEvent)}


def assert_same_losses(first: AttemptDir, second: AttemptDir) -> None:
    """Steps that the second attempt has made again come out as they did in the first."""
    before, after = losses_of(first), losses_of(second)
    again = before.keys() & after.keys()
    assert again, "the first attempt got further than its last checkpoint"
    assert {step: after[step] for step in again} == {step: before[step] for step in again}


def start_of(attempt: AttemptDir) -> StartEvent:
    (start,) = [event for event in attempt.events() if isinstance(event, StartEvent)]
    return start


def test_two_nodes_train_together(slurm_site: Any, tmp_path: Path) -> None:
    config = slurm_run(slurm_site, tmp_path)
    prepared = overland("prepare", config)
    assert prepared.returncode == 0, prepared.stdout + prepared.stderr
    done = overland("pretrain", config, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDir(tmp_path / "run")
    (attempt,) = run.attempts()
    record = attempt.record()
    assert record is not None
    assert (record.outcome, len(set(record.nodes))) == ("completed", 2)
    assert set(record.nodes) <= set(slurm_site.nodes)
    assert steps_of(attempt) == list(range(1, 13))
    assert run.checkpoint(12).is_committed()
    assert json.loads(done.stdout)
    token = slurm_site.token_file.read_bytes()
    assert [p for p in tmp_path.rglob("*") if p.is_file() and token in p.read_bytes()] == []


def test_a_lost_node_ends_the_attempt_and_the_next_one_goes_on(
    slurm_site: Any, tmp_path: Path
) -> None:
    steps = 300
    config = slurm_run(
        slurm_site,
        tmp_path,
        train={"steps": steps, "validation_interval_steps": steps},
        checkpoint={"interval_steps": 20},
        recovery={"node_check": QUICK_CHECK},
    )
    run, log = RunDir(tmp_path / "run"), tmp_path / "log"
    flow = start_overland("run", config, "--json", log=log)
    wait_for(lambda: len(steps_of(run.attempt(1))) >= 30, flow, log)
    lost = slurm_site.nodes[1]
    assert f"NodeList={slurm_site.nodes[0][:-1]}[1-2]" in slurm_site.cluster.command(
        "scontrol", "show", "job", "--all"
    )
    slurm_site.cluster.kill_node(lost)
    try:
        wait_for(lambda: len(run.attempts()) == 2 and steps_of(run.attempt(2)), flow, log)
        assert "DRAIN" in slurm_site.cluster.command("scontrol", "show", "node", lost)
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)
    assert flow.wait(300) == 0, log.read_text()
    first, second = run.attempts()
    record, verdict = first.record(), first.verdict()
    assert record is not None
    assert verdict is not None
    assert record.reason.startswith("NODE_FAIL")
    assert verdict.failure_class == "NodeFailure"
    check, action = read_report(first.path / "nodecheck"), first.action()
    assert check is not None
    assert action is not None
    assert check.complete
    assert check.named("down", "faulty") == check.drained == action.exclude_nodes == [lost]
    assert set(check.named("good")) == set(slurm_site.nodes) - {lost}, "a free node took part"
    again = second.record()
    assert again is not None
    assert lost not in again.nodes
    resumed = start_of(second).step
    assert resumed > 0
    assert steps_of(second) == list(range(resumed + 1, steps + 1))
    assert_same_losses(first, second)
    left = [f.name for f in progress_folders() if f"-slurm-{record.job_id}-" in f.name]
    assert left == [], "the second attempt's agents have removed what the killed one left"


def test_with_too_few_nodes_left_it_goes_on_with_fewer(slurm_site: Any, tmp_path: Path) -> None:
    """The checkpoint of three replicas is loaded by two, which make the same global batch of it."""
    steps = 200
    config = slurm_run(
        slurm_site,
        tmp_path,
        nodes=3,
        parallel={"data": 3, "distributed_optimizer": True},
        train={
            "steps": steps,
            "validation_interval_steps": steps,
            "global_batch_size": 12,
            "micro_batch_size": 2,
        },
        checkpoint={"interval_steps": 20},
        recovery={"node_check": QUICK_CHECK | {"too_few_nodes": "shrink"}},
    )
    run, log = RunDir(tmp_path / "run"), tmp_path / "log"
    flow = start_overland("run", config, "--json", log=log)
    wait_for(lambda: len(steps_of(run.attempt(1))) >= 30, flow, log)
    lost = slurm_site.nodes[2]
    slurm_site.cluster.kill_node(lost)
    try:
        wait_for(lambda: len(run.attempts()) == 2 and steps_of(run.attempt(2)), flow, log)
        assert flow.wait(300) == 0, log.read_text()
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)
    _, second = run.attempts()
    record, start = second.record(), start_of(second)
    assert record is not None
    assert set(record.nodes) == set(slurm_site.nodes) - {lost}
    assert start.world_size == 2
    assert start.step > 0
    assert steps_of(second) == list(range(start.step + 1, steps + 1))


# So slow that what happens to the job happens before it is done; only in the first attempt.
SLOW = [{"kind": "slow", "step": 25, "steps": 16, "delay_s": 6.0}]


def slow_run(site: Any, folder: Path, partition: str = "main") -> Path:
    steps = {"steps": 40, "validation_interval_steps": 40}
    return slurm_run(
        site, folder, nodes=1, partition=partition, parallel={"data": 1}, train=steps,
        checkpoint={"interval_steps": 20}, faults=SLOW,
    )  # fmt: skip


def test_a_persons_scancel_is_respected(slurm_site: Any, tmp_path: Path) -> None:
    config = slow_run(slurm_site, tmp_path)
    run, log = RunDir(tmp_path / "run"), tmp_path / "log"
    flow = start_overland("run", config, "--json", log=log)
    wait_for(lambda: len(steps_of(run.attempt(1))) >= 25, flow, log)
    record = run.attempt(1).record()
    assert record is not None
    slurm_site.cluster.command("scancel", record.job_id)
    assert flow.wait(120) == EXIT_RUN_FAILED, log.read_text()
    (attempt,) = run.attempts()
    verdict, action = attempt.verdict(), attempt.action()
    assert verdict is not None
    assert action is not None
    assert verdict.failure_class == "SlurmCancelled"
    assert (action.stop, action.kind) == (True, "none")
    assert "ended on purpose" in log.read_text()


def test_after_its_time_limit_it_goes_on_in_the_next_job(slurm_site: Any, tmp_path: Path) -> None:
    config = slow_run(slurm_site, tmp_path)
    run, log = RunDir(tmp_path / "run"), tmp_path / "log"
    flow = start_overland("run", config, "--json", log=log)
    wait_for(lambda: len(steps_of(run.attempt(1))) >= 22, flow, log)
    record = run.attempt(1).record()
    assert record is not None
    slurm_site.cluster.command("scontrol", "update", f"jobid={record.job_id}", "endtime=now")
    assert flow.wait(300) == 0, log.read_text()
    first, second = run.attempts()
    verdict, action, again = first.verdict(), first.action(), second.record()
    assert verdict is not None
    assert action is not None
    assert again is not None
    assert (verdict.failure_class, verdict.method) == ("SlurmTimeLimit", "launcher")
    assert (action.stop, action.kind) == (False, "resubmit_later")
    assert again.job_id != record.job_id
    # Where the signal before the kill leaves time for it, the step at which it came was saved.
    saved = [c.step for c in run.committed_checkpoints() if c.step <= steps_of(first)[-1]]
    assert start_of(second).step == max(saved) >= 20
    assert run.checkpoint(40).is_committed()


def test_a_preempted_run_goes_on_with_the_same_losses(slurm_site: Any, tmp_path: Path) -> None:
    config = slow_run(slurm_site, tmp_path, partition="low")
    run, log = RunDir(tmp_path / "run"), tmp_path / "log"
    flow = start_overland("run", config, "--json", log=log)
    wait_for(lambda: len(steps_of(run.attempt(1))) >= 25, flow, log)
    record = run.attempt(1).record()
    assert record is not None
    command = slurm_site.cluster.command
    node = command("squeue", "-h", "-j", record.job_id, "-o", "%N").strip()
    partition = "main" if node in slurm_site.nodes else "cpu"
    wanted = (f"--partition={partition}", f"--nodelist={node}", "--exclusive")
    command("sbatch", *wanted, "--output=/dev/null", "--wrap=sleep 1")
    assert flow.wait(300) == 0, log.read_text()
    first, second = run.attempts()
    verdict, action, again = first.verdict(), first.action(), second.record()
    assert verdict is not None
    assert action is not None
    assert again is not None
    assert (verdict.failure_class, verdict.method) == ("SlurmPreempted", "launcher")
    assert (action.stop, again.job_id != record.job_id) == (False, True)
    assert start_of(second).step == 20
    assert_same_losses(first, second)
    assert run.checkpoint(40).is_committed()
