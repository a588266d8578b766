"""What only the Slurm launcher can meet, on a real cluster: its faults, its refusals, its nodes."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import slurm_config
from job_helpers import is_running, log_text, python_job, wait_for_end, wait_for_pids, wait_until

from configs.errors import EXIT_CONTINUE, LaunchError
from configs.stacks import RankStack
from infra.launch import make_launcher
from infra.launch.base import JobSpec, JobState, Launcher
from infra.launch.slurm_record import SlurmFiles, SlurmRecord, Submission, claim, read, write
from infra.slurm.daemons import ClusterError

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SLEEP = """
import os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def launcher(slurm_site: Any) -> Launcher:
    return make_launcher(slurm_config(slurm_site))


def with_settings(site: Any, **settings: Any) -> Launcher:
    return make_launcher(slurm_config(site, **settings))


def sleeper(tmp_path: Path, seconds: float = 600.0, name: str = "job") -> JobSpec:
    return python_job(
        tmp_path / name, SLEEP, str(tmp_path / f"{name}-pids"), str(seconds), key=name
    )


def bring_back(site: Any, launcher: Launcher, node: str) -> None:
    """Slurm refuses to resume a node that has come back by itself, as it may at any moment."""

    def is_back() -> bool:
        if node not in launcher.nodes():
            with suppress(ClusterError):
                site.cluster.command("scontrol", "update", f"nodename={node}", "state=resume")
        return node in launcher.nodes()

    wait_until(is_back, f"{node} to be back")


def all_comments(site: Any) -> list[str]:
    """Comments of all jobs that slurmctld knows."""
    out = site.cluster.command("squeue", "-h", "-t", "all", "-o", "%k")
    return [line for line in out.splitlines() if line]


# --- submitted once -------------------------------------------------------------------------------


def test_a_job_whose_submitter_died_before_recording_it_is_found(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    spec = sleeper(tmp_path, 1.0)
    first = launcher.submit(spec)
    SlurmFiles(spec.job_dir).record.unlink()
    assert launcher.find(spec.job_dir) is not None
    SlurmFiles(spec.job_dir).record.unlink()
    SlurmFiles(spec.job_dir).claim.unlink(missing_ok=True)
    again = launcher.submit(spec)
    assert again.job_id == first.job_id
    assert wait_for_end(launcher, again).state is JobState.COMPLETED


def test_a_late_second_job_leaves_the_folder_alone(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    """As when a dead submitter's request arrives after another one has submitted anew."""
    spec = python_job(tmp_path / "job", "print('ran')")
    handle = launcher.submit(spec)
    wait_for_end(launcher, handle)
    script = tmp_path / "script.sh"
    job_id = handle.job_id
    script.write_text(slurm_site.cluster.command("scontrol", "write", "batch_script", job_id, "-"))
    out = tmp_path / "second.log"
    with pytest.raises(ClusterError, match="ended with 90"):
        slurm_site.cluster.command("sbatch", "--wait", f"--output={out}", str(script))
    assert f"belongs to job {job_id}: nothing is done" in out.read_text()
    assert log_text(launcher, handle) == "ran\n"
    assert launcher.find(spec.job_dir) == handle


def test_a_folder_made_anew_does_not_find_the_old_job(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    import shutil

    spec = python_job(tmp_path / "job", "")
    first = launcher.submit(spec)
    wait_for_end(launcher, first)
    shutil.rmtree(spec.job_dir)
    assert launcher.find(spec.job_dir) is None
    second = launcher.submit(spec)
    assert second.job_id != first.job_id
    assert wait_for_end(launcher, second).state is JobState.COMPLETED


def test_a_number_that_was_used_again_is_another_job(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    spec = sleeper(tmp_path)
    other = launcher.submit(spec)
    files = SlurmFiles(tmp_path / "old")
    files.job_dir.mkdir()
    record = read(SlurmFiles(spec.job_dir).record, SlurmRecord)
    assert record is not None
    old = record.model_copy(update={"key": "old", "comment": "overland abc old"})
    write(files.record, old)
    status = wait_for_end(launcher, old.handle(files.job_dir))
    assert status.state is JobState.NODE_FAIL
    assert "does not know the job any more" in status.reason
    assert launcher.poll(other).state in (JobState.PENDING, JobState.RUNNING)
    launcher.cancel(other, grace_s=0.0)


def test_the_environment_of_a_surrounding_job_is_left_out(
    launcher: Launcher, slurm_site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JWT", "a-secret")
    monkeypatch.setenv("SLURM_JOB_NAME", "outer")
    monkeypatch.setenv("FROM_OUTSIDE", "two\nlines and 'quotes'")
    code = "import os, json; print(json.dumps([os.environ.get(n) for n in ('SLURM_JWT', 'SLURM_JOB_NAME', 'FROM_OUTSIDE')]))"
    handle = launcher.submit(python_job(tmp_path / "job", code))
    wait_for_end(launcher, handle)
    assert json.loads(log_text(launcher, handle)) == [None, "test", "two\nlines and 'quotes'"]


# --- the control plane is away --------------------------------------------------------------------


def test_slurmctld_restarts_while_a_job_runs(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(sleeper(tmp_path, 3.0))
    wait_for_pids(tmp_path / "job-pids", 1)
    wait_until(lambda: launcher.poll(handle).state is JobState.RUNNING, "the job to run")
    # Not SIGKILL: Slurm then loses, and ends, the jobs of its last seconds.
    slurm_site.cluster.stop_controller()
    assert launcher.poll(handle).state in (JobState.PENDING, JobState.RUNNING)
    slurm_site.cluster.start_controller()
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.COMPLETED, 0)


def test_slurmrestd_is_away_while_jobs_are_watched_submitted_and_ended(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    watched = launcher.submit(sleeper(tmp_path, 1.0, "watched"))
    wait_for_pids(tmp_path / "watched-pids", 1)
    wait_until(lambda: launcher.poll(watched).state is JobState.RUNNING, "the job to run")
    slurm_site.cluster.stop_rest()
    spec = sleeper(tmp_path, 600.0, "new")
    with ThreadPoolExecutor() as pool:
        try:
            submitted = pool.submit(launcher.submit, spec)
            for _ in range(10):
                assert launcher.poll(watched).state in (JobState.PENDING, JobState.RUNNING)
                time.sleep(0.4)
        finally:
            slurm_site.cluster.start_rest()
        new = submitted.result()
    assert wait_for_end(launcher, watched).state is JobState.COMPLETED
    marked = [comment for comment in all_comments(slurm_site) if comment.endswith(" new")]
    submission = read(SlurmFiles(spec.job_dir).submission, Submission)
    assert submission is not None
    assert marked.count(submission.comment) == 1
    launcher.cancel(new, grace_s=0.0)


def test_patience_has_an_end(slurm_site: Any, tmp_path: Path) -> None:
    nobody = with_settings(slurm_site, url="http://127.0.0.1:9", patience_s=0.3)
    with pytest.raises(LaunchError, match=r"has not answered for 0\.3 s.*127\.0\.0\.1:9"):
        nobody.submit(python_job(tmp_path / "job", ""))
    with pytest.raises(LaunchError, match="jobs go on without us"):
        nobody.nodes()


# --- how jobs end from outside --------------------------------------------------------------------


def test_a_node_that_goes_down_fails_the_job(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(sleeper(tmp_path))
    wait_for_pids(tmp_path / "job-pids", 1)
    wait_until(lambda: launcher.poll(handle).state is JobState.RUNNING, "the job to run")
    (node,) = launcher.poll(handle).nodes
    slurm_site.cluster.command(
        "scontrol", "update", f"nodename={node}", "state=down", "reason=test"
    )
    status = wait_for_end(launcher, handle)
    assert (status.state, status.nodes) == (JobState.NODE_FAIL, (node,))
    bring_back(slurm_site, launcher, node)


def test_a_crashed_node_fails_a_job_of_two_nodes(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(ranks_job(tmp_path, WAITS, nodes=2))
    wait_for_pids(tmp_path / "pids", 2)
    wait_until(lambda: len(launcher.poll(handle).nodes) == 2, "two nodes")
    lost = launcher.poll(handle).nodes[1]
    slurm_site.cluster.kill_node(lost)
    try:
        status = wait_for_end(launcher, handle)
        assert status.state is JobState.NODE_FAIL
        assert lost in status.nodes
    finally:
        slurm_site.cluster.start_node(lost)
    bring_back(slurm_site, launcher, lost)


def test_a_persons_scancel_is_told_from_ours(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(sleeper(tmp_path))
    (pid,) = wait_for_pids(tmp_path / "job-pids", 1)
    slurm_site.cluster.command("scancel", handle.job_id)
    status = wait_for_end(launcher, handle)
    assert status.state is JobState.CANCELLED
    assert status.reason.startswith("cancelled from outside")
    assert not is_running(pid)


def test_a_pending_job_is_cancelled(slurm_site: Any, tmp_path: Path) -> None:
    busy = with_settings(slurm_site, cpus_per_node=slurm_site.cluster.settings.cpus_per_node)
    spec = dataclasses.replace(
        sleeper(tmp_path, name="first"), exclude_nodes=tuple(slurm_site.nodes[1:])
    )
    first = busy.submit(spec)
    wait_for_pids(tmp_path / "first-pids", 1)
    waits = busy.submit(
        dataclasses.replace(
            sleeper(tmp_path, name="second"),
            exclude_nodes=(*slurm_site.nodes[1:], "a-node-that-was-removed"),
        )
    )
    wait_until(lambda: "queue" in busy.poll(waits).reason, "the reason why it waits")
    assert busy.poll(waits).state is JobState.PENDING
    busy.cancel(waits)
    assert (busy.poll(waits).state, busy.poll(waits).reason) == (JobState.CANCELLED, "cancelled")
    assert busy.poll(first).nodes == (slurm_site.nodes[0],)
    busy.cancel(first, grace_s=0.0)


def test_slurms_time_limit(launcher: Launcher, slurm_site: Any, tmp_path: Path) -> None:
    handle = launcher.submit(sleeper(tmp_path))
    wait_for_pids(tmp_path / "job-pids", 1)
    # A limit of a minute would take more than one: Slurm looks every 30 s.
    slurm_site.cluster.command("scontrol", "update", f"jobid={handle.job_id}", "endtime=now")
    status = wait_for_end(launcher, handle)
    assert status.state is JobState.TIMEOUT
    assert "time limit" in status.reason


def test_a_preempted_job(slurm_site: Any, tmp_path: Path) -> None:
    cpus = slurm_site.cluster.settings.cpus_per_node
    low = with_settings(
        slurm_site, low_priority_partition="low", low_priority_nice=70, cpus_per_node=cpus
    )
    only = tuple(slurm_site.cluster.settings.all_node_names[1:])
    spec = dataclasses.replace(sleeper(tmp_path, name="low"), low_priority=True, exclude_nodes=only)
    weak = low.submit(spec)
    wait_for_pids(tmp_path / "low-pids", 1)
    strong = low.submit(dataclasses.replace(sleeper(tmp_path, 0.1, "high"), exclude_nodes=only))
    assert wait_for_end(low, strong).state is JobState.COMPLETED
    assert wait_for_end(low, weak).state is JobState.PREEMPTED
    nices = [
        slurm_site.cluster.command("squeue", "-h", "-t", "all", "-j", job.job_id, "-o", "%y")
        for job in (weak, strong)
    ]
    assert [int(nice) for nice in nices] == [70, 0]


def test_a_node_that_cannot_start_jobs_is_no_persons_scancel(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    """Slurm ends a job that may not be requeued with CANCELLED, without a reason."""
    ill, *others = slurm_site.nodes
    slurm_site.cluster.make_ill(ill)
    try:
        spec = dataclasses.replace(sleeper(tmp_path), exclude_nodes=tuple(others))
        status = wait_for_end(launcher, launcher.submit(spec))
        assert (status.state, status.nodes) == (JobState.NODE_FAIL, (ill,))
        assert status.reason.startswith("the job could not be started")
        assert not (tmp_path / "job-pids").exists()
    finally:
        slurm_site.cluster.repair(timeout_s=60.0)


def test_a_dependency_is_waited_for_or_given_up(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    def depends_on(name: str, code: str) -> JobState:
        first = launcher.submit(python_job(tmp_path / f"{name}-first", code, key=f"{name}-first"))
        spec = python_job(tmp_path / name, "", key=name)
        spec = dataclasses.replace(spec, dependency=f"afterok:{first.job_id}")
        handle = launcher.submit(spec)
        state = wait_for_end(launcher, handle).state
        assert launcher.poll(first).state.final, "it came first"
        if state is JobState.FAILED:
            assert "DependencyNeverSatisfied" in launcher.poll(handle).reason
        return state

    assert depends_on("good", "import time; time.sleep(1)") is JobState.COMPLETED
    assert depends_on("bad", "import sys, time; time.sleep(1); sys.exit(3)") is JobState.FAILED
    left = slurm_site.cluster.command("squeue", "-h", "-t", "pending", "-o", "%k")
    assert "bad" not in left, "what can never start does not stay in the queue"


def test_slurmdbd_remembers_what_slurmctld_has_forgotten(
    accounting_site: Any, tmp_path: Path
) -> None:
    cluster = accounting_site.cluster
    launcher = with_settings(accounting_site, account="research")
    handle = launcher.submit(sleeper(tmp_path))
    wait_for_pids(tmp_path / "job-pids", 1)
    cluster.command("scancel", handle.job_id)

    def is_forgotten() -> bool:
        with suppress(ClusterError):
            cluster.command("scontrol", "show", "job", handle.job_id)
            return False
        return True

    wait_until(is_forgotten, "slurmctld to forget the job", limit_s=180.0)
    # By its nodes' word alone this would be Slurm's failure.
    status = launcher.poll(handle)
    assert status.state is JobState.CANCELLED
    assert status.reason.startswith("cancelled from outside")
    assert status.nodes == tuple(accounting_site.nodes)


EATS = """
kept = []
for _ in range(200):
    kept.append(bytearray(b"x" * (4 << 20)))
time.sleep(600)
"""


@pytest.mark.parametrize("distributed", [False, True], ids=["batch", "step"])
def test_out_of_memory(slurm_site: Any, tmp_path: Path, distributed: bool) -> None:
    conf = slurm_site.cluster.settings.conf.read_text()
    if "task/cgroup" not in conf:
        pytest.skip("memory can only be limited where cgroups of version 1 can be written")
    size_gib = 0.4 if distributed else 0.1
    small = with_settings(slurm_site, memory_per_node_gib=size_gib)
    spec = python_job(tmp_path / "job", EATS)
    if distributed:
        spec = ranks_job(tmp_path, EATS, nodes=1)
    status = wait_for_end(small, small.submit(spec))
    assert status.state is JobState.OUT_OF_MEMORY
    assert "more memory" in status.reason


# --- refused at submission ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "nodes", "words"),
    [
        ({"partition": "nowhere"}, 1, r"partition 'nowhere' does not exist: the server has .*main"),
        ({}, 9, r"can n?ever .*9 node\(s\)"),
        ({"memory_per_node_gib": 9999.0}, 1, r"no node can ever satisfy it.*MiB"),
        ({"gpus_per_node": 99}, 1, r"no node can ever satisfy it.*gpu:99"),
        ({"cpus_per_node": 999}, 1, r"can n?ever .*1 node\(s\) with 999 CPU"),
        ({"constraints": "quantum"}, 1, r"no node has the features 'quantum'"),
        (
            {"partition": "short", "time_limit_minutes": 99},
            1,
            r"partition 'short' can never .* 99 minutes",
        ),
    ],
)
def test_what_can_never_run_is_refused(
    slurm_site: Any, tmp_path: Path, settings: dict[str, Any], nodes: int, words: str
) -> None:
    launcher = with_settings(slurm_site, **settings)
    spec = ranks_job(tmp_path, "", nodes=nodes)
    with pytest.raises(LaunchError, match=words):
        launcher.submit(spec)
    assert launcher.find(spec.job_dir) is None
    # With a right config, the same folder is used.
    handle = make_launcher(slurm_config(slurm_site)).submit(
        python_job(spec.job_dir, "", key=spec.key)
    )
    assert wait_for_end(launcher, handle).state is JobState.COMPLETED


def test_account_and_qos_are_checked_where_they_count(accounting_site: Any, tmp_path: Path) -> None:
    right = with_settings(accounting_site, account="research", qos="urgent")
    handle = right.submit(python_job(tmp_path / "right", ""))
    assert wait_for_end(right, handle).state is JobState.COMPLETED
    with pytest.raises(LaunchError, match=r"account 'nobody' does not exist, or user"):
        with_settings(accounting_site, account="nobody").submit(python_job(tmp_path / "a", ""))
    with pytest.raises(LaunchError, match=r"QOS 'gold' does not exist"):
        with_settings(accounting_site, account="research", qos="gold").submit(
            python_job(tmp_path / "b", "")
        )


def test_a_wrong_token_is_said_so_and_not_shown(slurm_site: Any, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.touch(mode=0o600)
    token_file.write_text("eyJhbGciOiJIUzI1NiJ9.e30.c2VjcmV0")
    wrong = with_settings(slurm_site, token_file=token_file, patience_s=3.0)
    for call in (lambda: wrong.submit(python_job(tmp_path / "job", "")), wrong.nodes):
        with pytest.raises(LaunchError, match="does not accept the token of") as caught:
            call()
        assert "c2VjcmV0" not in str(caught.value)


def test_a_server_that_is_not_slurms(tmp_path: Path, slurm_site: Any) -> None:
    import http.server

    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        other = with_settings(slurm_site, url=f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(LaunchError, match=r"speaks none of the versions v0\.0\.38, v0\.0\.40"):
            other.submit(python_job(tmp_path / "job", ""))
    finally:
        server.shutdown()
        server.server_close()


# --- nodes ----------------------------------------------------------------------------------------


def test_a_cordoned_node_gets_no_jobs(launcher: Launcher, slurm_site: Any, tmp_path: Path) -> None:
    node = slurm_site.nodes[0]
    assert set(slurm_site.nodes) <= set(launcher.nodes())
    only = with_settings(slurm_site, partition="cpu")
    assert only.nodes() == slurm_site.cluster.settings.cpu_node_names
    launcher.cordon(node, "failed twice; see run/7")
    try:
        assert node not in launcher.nodes()
        assert "Reason=failed twice; see run/7" in slurm_site.cluster.command(
            "scontrol", "show", "node", node
        )
    finally:
        bring_back(slurm_site, launcher, node)
    with pytest.raises(LaunchError, match="Slurm has no such node"):
        launcher.cordon("nowhere", "test")


# --- distributed over nodes -----------------------------------------------------------------------

REDUCES = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
rank, size, local = dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"]
line = f"rank {rank} of {size} local {local} on {os.environ['OVERLAND_NODE']} sum {int(total)}\\n"
os.write(1, line.encode())  # whole: others write too
dist.destroy_process_group()
"""

WAITS = """
import os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
time.sleep(600)
"""

# Ranks that leave with the code for "continue me" when they are warned or asked to stop.
STOPS = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda n, _: got.append(signal.Signals(n).name))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
while not got:
    signal.sigtimedwait([], 0.05)
time.sleep(0.5 + 0.5 * int(os.environ["RANK"]))
os.write(1, f"rank {os.environ['RANK']} got {got[0]}\\n".encode())
sys.exit(75)
"""

FAILS = """
import os, sys, time
time.sleep(600 if os.environ["RANK"] == "0" else 1)
sys.exit(3)
"""


def ranks_job(tmp_path: Path, code: str, *, nodes: int, processes: int = 1) -> JobSpec:
    script = tmp_path / "ranks.py"
    script.write_text(code)
    return JobSpec(
        key="run/attempts/001",
        name="train",
        argv=(str(script), str(tmp_path / "pids")),
        job_dir=tmp_path / "a job",
        environment={"OMP_NUM_THREADS": "1"},
        distributed=True,
        nodes=nodes,
        processes_per_node=processes,
    )


def test_two_nodes_reduce_over_gloo(launcher: Launcher, slurm_site: Any, tmp_path: Path) -> None:
    handle = launcher.submit(ranks_job(tmp_path, REDUCES, nodes=2, processes=2))
    status = wait_for_end(launcher, handle)
    text = log_text(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.COMPLETED, 0), text
    assert len(status.nodes) == 2
    first, second = status.nodes
    lines = sorted(line for line in text.splitlines() if line.startswith("rank"))
    assert lines == [
        f"rank 0 of 4 local 0 on {first} sum 10",
        f"rank 1 of 4 local 1 on {first} sum 10",
        f"rank 2 of 4 local 0 on {second} sum 10",
        f"rank 3 of 4 local 1 on {second} sum 10",
    ]


def test_ranks_on_two_nodes_are_looked_at(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(ranks_job(tmp_path, WAITS, nodes=2))
    pids = wait_for_pids(tmp_path / "pids", 2)
    wait_until(lambda: len(launcher.poll(handle).nodes) == 2, "two nodes")
    paths = launcher.stacks(handle, timeout_s=60.0)
    stacks = [RankStack.model_validate_json(path.read_bytes()) for path in paths]
    assert [stack.rank for stack in stacks] == [0, 1]
    assert [stack.node for stack in stacks] == list(launcher.poll(handle).nodes)
    assert {stack.pid for stack in stacks} == set(pids)
    launcher.cancel(handle, grace_s=0.0)
    assert launcher.poll(handle).reason == "cancelled"
    assert not any(is_running(pid) for pid in pids)


def test_one_nodes_failure_ends_the_others(
    launcher: Launcher, slurm_site: Any, tmp_path: Path
) -> None:
    handle = launcher.submit(ranks_job(tmp_path, FAILS, nodes=2))
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, 1)


@pytest.mark.parametrize("how", ["cancelled", "warned"])
def test_ranks_have_time_to_save(
    launcher: Launcher, slurm_site: Any, tmp_path: Path, how: str
) -> None:
    handle = launcher.submit(ranks_job(tmp_path, STOPS, nodes=2))
    wait_for_pids(tmp_path / "pids", 2)
    if how == "cancelled":
        launcher.cancel(handle, grace_s=30.0)
        expected, word = (JobState.CANCELLED, EXIT_CONTINUE), "SIGTERM"
    else:
        # What Slurm does by itself before the time limit, when it was told to.
        slurm_site.cluster.command("scancel", "--signal=USR1", handle.job_id)
        expected, word = (JobState.FAILED, EXIT_CONTINUE), "SIGUSR1"
    status = wait_for_end(launcher, handle)
    text = log_text(launcher, handle)
    assert (status.state, status.exit_code) == expected, text
    assert sorted(line for line in text.splitlines() if line.startswith("rank")) == [
        f"rank 0 got {word}",
        f"rank 1 got {word}",
    ]


def test_the_warning_is_ordered_from_slurm(slurm_site: Any, tmp_path: Path) -> None:
    """SIGUSR1 comes within a minute of what was asked for: here at once, as the job starts."""
    warned = with_settings(slurm_site, time_limit_minutes=2, warning_s=110)
    handle = warned.submit(ranks_job(tmp_path, STOPS, nodes=1))
    status = wait_for_end(warned, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, EXIT_CONTINUE)
    assert "rank 0 got SIGUSR1" in log_text(warned, handle)


def test_gpus_are_those_of_the_node(slurm_site: Any, tmp_path: Path) -> None:
    if "gpu" not in slurm_site.cluster.command("sinfo", "-h", "-p", "main", "-o", "%G"):
        pytest.skip("device files for GPUs can only be made by root")
    launcher = with_settings(slurm_site, gpus_per_node=2, gpu_type="h100")
    code = "import os; os.write(1, b'gpus ' + os.environb[b'CUDA_VISIBLE_DEVICES'] + bytes([10]))"
    handle = launcher.submit(ranks_job(tmp_path, code, nodes=2))
    status = wait_for_end(launcher, handle)
    text = log_text(launcher, handle)
    assert status.state is JobState.COMPLETED, text
    assert [line for line in text.splitlines() if line.startswith("gpus")] == ["gpus 0,1"] * 2


def test_a_claim_is_for_one(tmp_path: Path) -> None:
    files = SlurmFiles(tmp_path)
    assert claim(files, 7) == 7
    assert claim(files, 8) == 7
    assert claim(files, 7) == 7
    assert [p.name for p in tmp_path.iterdir()] == ["job.claim"]
