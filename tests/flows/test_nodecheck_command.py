"""`overland nodecheck` and `overland simulate nodecheck`: figures, exit codes, wrong input."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from configs.errors import InputError
from configs.nodecheck import FaultMix, NodeCheckReport, NodeResult, NodeState, SimulatedCheck
from flows.cli import app
from flows.show.nodecheck import print_nodecheck
from tasks.recover import task
from tasks.recover.nodecheck_simulation import simulate_checks
from tests.flows.helpers import tiny_config

NAMES = ("a", "b", "c")


def report(*states: NodeState, **more: Any) -> NodeCheckReport:
    nodes = [
        NodeResult(node=name, state=state, reason="" if state == "good" else f"why {name}")
        for name, state in zip(NAMES, states, strict=False)
    ]
    values = {"complete": True, "nodes": nodes, "started_at": 0.0, "ended_at": 61.0, "rounds": 2}
    return NodeCheckReport.model_validate(values | more)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a check finds, in place of a real one, and what it was asked."""
    calls: dict[str, Any] = {"report": report("good", "good")}

    def check(config: Any, folder: Path, nodes: list[str], **_: Any) -> NodeCheckReport:
        calls.update(config=config, folder=folder, nodes=nodes)
        answer: NodeCheckReport = calls["report"]
        return answer

    monkeypatch.setattr(task, "check_nodes", check)
    monkeypatch.setattr(task, "all_nodes", lambda _, also_down=False: list(NAMES))
    return calls


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (report("good", "good"), 0),
        (report("good", "faulty"), 3),
        (report("down", "slow"), 3),
        (report("good", "slow"), 4),
        (report("undecided", "undecided"), 4),
        (report("good", "good", links=[("a", "b")]), 4),
        (report("good", "good", complete=False, reason="late"), 1),
        (report("faulty", "good", complete=False, reason="late"), 3),
    ],
)
def test_exit_codes(
    found: dict[str, Any], tmp_path: Path, outcome: NodeCheckReport, code: int
) -> None:
    found["report"] = outcome
    result = CliRunner().invoke(app, ["nodecheck", str(tiny_config(tmp_path)), "--json"])
    assert result.exit_code == code
    assert NodeCheckReport.model_validate_json(result.stdout.splitlines()[-1]) == outcome


def test_what_is_asked_for_is_done(found: dict[str, Any], tmp_path: Path) -> None:
    config, folder = str(tiny_config(tmp_path)), str(tmp_path / "there")
    result = CliRunner().invoke(app, ["nodecheck", config, "--nodes", "a"])
    assert result.stderr.startswith("checking 1 node in ")
    CliRunner().invoke(app, ["nodecheck", config])
    assert (found["nodes"], found["config"].recovery.node_check.drain) == (list(NAMES), False)
    assert found["folder"].parent == tmp_path / "nodechecks"
    CliRunner().invoke(
        app, ["nodecheck", config, "--nodes", "c,a,c", "--drain", "--folder", folder]
    )
    assert (found["nodes"], found["folder"]) == (["c", "a"], Path(folder))
    assert found["config"].recovery.node_check.drain


@pytest.mark.parametrize(
    ("names", "words"),
    [("a,z", "--nodes: there is no 'z'; there are a, b, c"), (" , ", "--nodes is empty")],
)
def test_wrong_names_are_refused(
    found: dict[str, Any], tmp_path: Path, names: str, words: str
) -> None:
    arguments = ["nodecheck", str(tiny_config(tmp_path)), "--nodes", names]
    with pytest.raises(InputError, match=words):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_folder_that_cannot_take_the_check_is_refused(
    found: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "report.json").touch()
    (tmp_path / "file").touch()
    for folder, words in (
        (tmp_path, "holds the report of a check that has ended"),
        (tmp_path / "file" / "x", r"cannot be made or written \(Not a directory\)"),
    ):
        arguments = ["nodecheck", str(tiny_config(tmp_path)), "--folder", str(folder)]
        with pytest.raises(InputError, match=words):
            CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "nodes" not in found


def test_a_cluster_that_cannot_be_used_is_wrong_input(tmp_path: Path) -> None:
    slurm = {"url": "http://127.0.0.1:9", "token_file": str(tmp_path)}
    config = tiny_config(tmp_path, launcher={"kind": "slurm", "slurm": slurm})
    with pytest.raises(InputError, match=f"{tmp_path} is a folder"):
        CliRunner().invoke(app, ["nodecheck", str(config)], catch_exceptions=False)


def test_ctrl_c_is_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(task, "run_check", interrupted)
    result = CliRunner().invoke(app, ["nodecheck", str(tiny_config(tmp_path))])
    assert result.exit_code == 130
    assert "interrupted: the node check's job is ended" in result.stderr


def shown(outcome: NodeCheckReport) -> str:
    stream = io.StringIO()
    print_nodecheck(outcome, Console(file=stream, width=100, highlight=False, markup=False))
    return stream.getvalue()


def test_people_see_bad_nodes_first_and_what_was_done() -> None:
    text = shown(
        report(
            "good", "faulty", "slow",
            links=[("a", "c")], drained=["b"], drain_errors=["c: no"], complete=False, reason="late",
        )
    )  # fmt: skip
    lines = [line for line in text.splitlines() if line]
    assert lines[0] == "Node check  3 nodes, 2 rounds, 1m 01s"
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["b", "faulty"], ["c", "slow"], ["a", "good"],
    ]  # fmt: skip
    assert lines[5:] == [
        "a and c failed together, though both passed with others",
        "b was taken out of service",
        "not taken out of service: c: no",
        "the check did not end: late",
    ]


def test_many_good_nodes_are_only_counted() -> None:
    many = [NodeResult(node=f"n{i}", state="good") for i in range(1000)]
    text = shown(report(nodes=[*many, NodeResult(node="x", state="faulty")]))
    assert "1,000 nodes good" in text
    assert len(text.splitlines()) < 8


# --- simulation -----------------------------------------------------------------------------------


def simulated(*arguments: str) -> list[SimulatedCheck]:
    result = CliRunner().invoke(
        app, ["simulate", "nodecheck", "--json", *arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return [SimulatedCheck.model_validate(c) for c in json.loads(result.stdout)["checks"]]


def test_all_standard_faults_are_simulated_with_both_tests() -> None:
    checks = simulated("--nodes", "400", "--seeds", "1")
    assert {check.test for check in checks} == {"paper", "overland"}
    ours = {check.mix.name: check for check in checks if check.test == "overland"}
    assert len(ours) == len(checks) / 2 >= 10
    assert ours["none"].detected == {}
    assert ours["none"].false_alarms_per_1000 == 0
    assert ours["40 % broken"].detected == {"broken": 1.0}
    assert all(check.false_alarms_per_1000 < 5 for check in ours.values())


def test_a_given_mix_is_simulated_and_its_seed_repeats_it() -> None:
    arguments = ("--nodes", "500", "--intermittent", "0.1", "--intermittent-rate", "0.5")
    first, again = simulated(*arguments), simulated(*arguments)
    without_planning = [c.model_copy(update={"planning_s": 0.0}) for c in first]
    assert without_planning == [c.model_copy(update={"planning_s": 0.0}) for c in again]
    paper, ours = first
    assert ours.detected["intermittent"] > paper.detected["intermittent"]
    assert ours.mix.intermittent == 0.1


def test_more_trials_find_more_of_what_comes_and_goes() -> None:
    mix = FaultMix(intermittent=0.1, intermittent_rate=0.1)
    few, many = (
        simulate_checks(1000, [mix], trials=n)[1].detected["intermittent"] for n in (1, 20)
    )
    assert many > 0.7 > 0.1 > few


def test_people_see_a_table() -> None:
    result = CliRunner().invoke(app, ["simulate", "nodecheck", "--nodes", "50", "--dead", "0.1"])
    assert result.exit_code == 0
    assert "dead 100.0 %" in result.stdout


def test_impossible_clusters_are_refused() -> None:
    for arguments, words in (
        (["--nodes", "1"], "--nodes must be at least 2"),
        (["--dead", "0.6", "--slow", "0.6"], "add up to more than 1"),
    ):
        with pytest.raises(InputError, match=words):
            simulated(*arguments)
