"""The parts of `overland chaos --launcher slurm` that need no cluster."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from configs.errors import InputError
from configs.rundir import RunDir
from flows.chaos.run import summarize
from flows.chaos.schedule import Plan
from flows.chaos.slurm_audit import ClusterJob, duplicates, jobs_of
from flows.chaos.slurm_schedule import FAULTS, LONGEST_AWAY_S, make_slurm_plans
from flows.cli import app
from infra.slurm import packages
from infra.slurm.cluster import LocalCluster
from infra.slurm.settings import ClusterSettings, save


def plans(seed: int, trials: int) -> list[Plan]:
    return make_slurm_plans(seed, trials, steps=50, interval_steps=5, ranks=2)


@pytest.mark.parametrize("seed", range(5))
def test_seven_trials_have_every_fault(seed: int) -> None:
    firsts = [plan.strikes[0] for plan in plans(seed, 14)]
    for seven in (firsts[:7], firsts[7:]):
        assert {(s.target, s.signal) for s in seven} == set(FAULTS)


def test_all_follows_from_the_seed_and_a_trials_number() -> None:
    assert plans(3, 10) == plans(3, 20)[:10]
    assert plans(3, 10) != plans(4, 10)


def test_daemons_are_away_for_a_while_and_nobody_else() -> None:
    strikes = [strike for plan in plans(1, 70) for strike in plan.strikes]
    for strike in strikes:
        longest_s = LONGEST_AWAY_S.get(strike.target)
        if longest_s is None:
            assert strike.away_s == 0.0
        else:
            assert 0 < strike.away_s <= longest_s
            assert f"{strike.away_s:.0f} s away" in str(strike)
    assert {s.moment.when for s in strikes} == {"any", "save", "commit", "later", "submit"}


def test_what_moves_to_other_nodes_restarts_from_storage() -> None:
    for plan in plans(2, 70):
        moves = any(strike.target in ("node", "job") for strike in plan.strikes)
        assert plan.keeps_memory is not moves


def test_jobs_beyond_the_first_of_a_key_are_duplicates() -> None:
    first = ClusterJob(1, "COMPLETED", "None", "/run/attempts/001")
    refused = ClusterJob(2, "FAILED", "BadConstraints", "/run/attempts/001")
    other = ClusterJob(3, "RUNNING", "None", "/run/attempts/002")
    again = ClusterJob(4, "CANCELLED", "None", "/run/attempts/002")
    assert duplicates([first, refused, other]) == 0
    assert duplicates([first, other, again]) == 1


def test_a_runs_jobs_are_known_by_their_comments(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")

    class Cluster(LocalCluster):
        def __init__(self) -> None:
            pass

        def command(self, *arguments: str) -> str:
            return (
                f"7|RUNNING|None|overland abc {run.path}/attempts/001\n"
                f"8|PENDING|Nodes required for job|overland abd {run.path}_try_2/attempts/001\n"
                "9|RUNNING|None|a person's job\n10|RUNNING|None|\n"
            )

    (job,) = jobs_of(Cluster(), run)
    assert job == ClusterJob(7, "RUNNING", "None", f"{run.path}/attempts/001")


@pytest.mark.parametrize(("key", "count"), [("duplicate_jobs", 1), ("orphan_jobs", 2)])
def test_jobs_too_many_fail_a_trial(key: str, count: int) -> None:
    right = {
        "number": 1, "identical": True, "lost_steps": 0, "leftovers": [], "restarts": [],
        "strikes": [{"target": "node", "signal": "SIGKILL", "when": "any", "is_hit": False}],
        "duplicate_jobs": 0, "orphan_jobs": 0,
    }  # fmt: skip
    report = summarize([right, right | {"number": 2, key: count}], seed=0)
    assert report[key] == count
    assert report["failed"] == [2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--failures", "--launcher", "slurm"], "by the local launcher only"),
        (["--cluster", "/tmp/x"], "--cluster needs --launcher slurm"),
        (["--launcher", "pbs"], "'pbs' is not one of"),
    ],
)
def test_what_does_not_fit_is_refused(options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["chaos", *options])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)


def test_a_cluster_that_trials_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing_packages", lambda **_: [])

    def refused(folder: Path) -> str:
        arguments = ["chaos", "--launcher", "slurm", "--cluster", str(folder)]
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, InputError)
        return str(result.exception)

    assert refused(tmp_path / "none").startswith(f"there is no cluster in {tmp_path}/none: ")
    save(ClusterSettings(folder=tmp_path, nodes=1))
    assert refused(tmp_path).startswith(f"the cluster in {tmp_path} is down: ")
    monkeypatch.setattr(LocalCluster, "is_up", True)
    assert refused(tmp_path).endswith("has 2 nodes: trials lose one, and need 3 at least")


def test_the_command_leaves_the_handler_of_sigterm_as_it_was() -> None:
    former = signal.getsignal(signal.SIGTERM)
    CliRunner().invoke(app, ["chaos", "--runs", "0"])
    assert signal.getsignal(signal.SIGTERM) is former
