"""Real probes over gloo, one program for each played node: some are killed, stopped, or misconfigured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from configs.node import NODE_VARIABLE
from configs.nodecheck import NodeAnswer, ProbeSize, RoundOrder
from tasks.recover import nodecheck_course
from tasks.recover.nodecheck import Rules
from tasks.recover.nodecheck_child import ProbeTask
from tasks.recover.nodecheck_course import Course
from tasks.recover.nodecheck_files import CheckFiles
from tasks.recover.nodecheck_job import player_names
from tests.flows.helpers import start_overland, tiny_config
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NODES = ["n0", "n1", "n2", "n3", "n4", "n5", "n6"]
SIZE = ProbeSize(trials=2, matmul_size=64, gather_mib=0.5, timeout_s=8.0)
RULES = Rules(slow_ratio=1e6)


@dataclass
class Site:
    """Nodes as processes, and what they say."""

    files: CheckFiles
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, **environment: str) -> None:
        command = [sys.executable, "-P", "-m", "tasks.recover.nodecheck_job"]
        self.programs[name] = subprocess.Popen(
            [*command, str(self.files.folder), "--idle-timeout-s=60"],
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", NODE_VARIABLE: name} | environment,
            start_new_session=True,
        )

    def family(self, name: str) -> list[psutil.Process]:
        """The node's program and all that it has started."""
        program = psutil.Process(self.programs[name].pid)
        return [program, *program.children(recursive=True)]

    def send(self, name: str, number: signal.Signals) -> None:
        for process in self.family(name):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(CheckFiles(tmp_path / "check"))
    yield site
    for name, program in site.programs.items():
        if program.poll() is None:
            site.send(name, signal.SIGKILL)
        program.wait()


def stop_a_probe(site: Site, name: str) -> None:
    """SIGSTOP the first process that the node starts for its next probe."""
    known = {process.pid for process in site.family(name)}

    def stopped() -> bool:
        for process in site.family(name):
            if process.pid not in known:
                process.send_signal(signal.SIGSTOP)
                return True
        return False

    wait_until(stopped, f"a probe of {name}")


def test_dead_stopped_and_broken_nodes_are_found_and_others_are_not_harmed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodecheck_course, "_MARGIN_S", 4.0)
    for name in NODES:
        # n2's gloo cannot find its network.
        site.start(name, **({"GLOO_SOCKET_IFNAME": "nowhere0"} if name == "n2" else {}))
    course = Course(site.files, NODES, RULES, SIZE, start_timeout_s=90.0)
    assert not course.advance()
    wait_until(
        lambda: len(list((site.files.folder / "round_00").glob("n*.json"))) == 7, "all nodes"
    )
    # From here on, one has lost its power, one hangs as a whole, and one's probe will hang.
    site.send("n0", signal.SIGKILL)
    site.send("n1", signal.SIGSTOP)
    stopper = threading.Thread(target=stop_a_probe, args=(site, "n4"))
    stopper.start()
    while not course.advance():
        time.sleep(0.02)
    stopper.join()
    site.files.done.touch()

    results = {result.node: result for result in course.findings().nodes}
    assert {n: r.state for n, r in results.items()} == {
        "n0": "faulty", "n1": "faulty", "n2": "faulty",
        "n3": "good", "n4": "good", "n5": "good", "n6": "good",
    }  # fmt: skip
    assert results["n0"].reason == results["n1"].reason == "it does not answer"
    assert "nowhere0" in results["n2"].reason
    hung = site.files.answer(1, "n4")
    assert hung is not None
    assert hung.reason == "its probe did not end in time and was killed"
    assert results["n4"].failures == 1
    for name in ("n3", "n4", "n5", "n6"):
        assert site.programs[name].wait(30) == 0, "nodes leave when the flow is done"


def test_a_node_whose_flow_is_gone_leaves(site: Site) -> None:
    site.files.folder.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "tasks.recover.nodecheck_job", str(site.files.folder)]
    done = subprocess.run([*command, "--idle-timeout-s=0.2"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no order for 0.2 s: leaving" in done.stdout


# --- what a probe itself notices ------------------------------------------------------------------


@pytest.fixture
def probe() -> Callable[[ProbeTask], NodeAnswer]:
    from tasks.recover import nodecheck_probe

    return nodecheck_probe.probe


def test_wrong_arithmetic_is_the_nodes_own_fault(
    probe: Callable[[ProbeTask], NodeAnswer], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    right = torch.Tensor.__matmul__
    counted = iter(range(100))

    def wrong_once(left: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = right(left, other)
        if next(counted) == 3:
            product[0, 0] += 1e-3
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong_once)
    answer = probe(ProbeTask(SIZE))
    assert (answer.ok, answer.own_fault) == (False, True)
    assert answer.reason == "OwnFaultError: the same matrix product gave two results"


def test_a_node_alone_says_how_long_its_work_took(
    probe: Callable[[ProbeTask], NodeAnswer],
) -> None:
    answer = probe(ProbeTask(SIZE))
    assert answer.ok
    assert answer.matmul_s is not None
    assert answer.matmul_s > 0
    assert answer.gather_s is None


def test_a_partner_that_never_comes_is_a_failure_in_time(
    probe: Callable[[ProbeTask], NodeAnswer], tmp_path: Path
) -> None:
    size = SIZE.model_copy(update={"timeout_s": 0.5})
    task = ProbeTask(size, rank=1, world_size=2, meeting=tmp_path / "meet.json")
    with pytest.raises(TimeoutError, match="first node has not said where to meet"):
        probe(task)


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_command_finds_a_player_that_was_killed(tmp_path: Path) -> None:
    """On one machine each process of the config plays a node, and draining is nothing."""
    config = tiny_config(
        tmp_path,
        launcher={"processes_per_node": 3},
        parallel={"data": 3},
        train={"global_batch_size": 12},
    )
    folder, log = tmp_path / "check", tmp_path / "log"
    settings = ["trials=1", "round_timeout_s=10", "slow_ratio=1000", "matmul_size=64"]
    overrides = [f"recovery.node_check.{setting}" for setting in settings]
    command = start_overland(
        "nodecheck", config, *overrides, "--folder", folder, "--drain", "--json", log=log
    )
    files = CheckFiles(folder / "try_1")
    wait_until(lambda: files.order_path(1).exists() or command.poll() is not None, "the roll call")
    order = files.order(1)
    assert isinstance(order, RoundOrder), log.read_text()
    names = player_names(3)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(NODE_VARIABLE) == names[1] and str(folder) in str(
                process.cmdline()
            ):
                process.kill()
    assert command.wait(120) == 3, log.read_text()
    lines = log.read_text().splitlines()
    assert "--drain does nothing here: the local launcher has one machine only" in lines
    report = json.loads(lines[-1])
    assert {r["node"]: r["state"] for r in report["nodes"]} == {
        names[0]: "good", names[1]: "faulty", names[2]: "good",
    }  # fmt: skip
