"""`overland plan goodput`: figures for people and programs; impossible input is refused with what fits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from configs.errors import InputError
from flows.cli import app
from flows.show.plan_goodput import print_goodput_plan
from tasks.recover.goodput_plan import plan_goodput
from tests.tasks.recover.goodput_cases import assume

BASE = ["plan", "goodput", "--gpus", "1000", "--parameters", "123B"]


def run(*arguments: str) -> str:
    """Standard output of the command; an InputError is raised as it is."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_is_one_object_with_the_figures() -> None:
    plan = json.loads(run(*BASE, "--step-time-s", "10", "--json"))
    assert plan["best_interval_s"] == 10 * plan["best_interval_steps"]
    assert 0.9 < plan["goodput"] < 1
    assert plan["goodput"] == plan["parts"]["productive"]
    assert sum(plan["parts"].values()) == pytest.approx(1)
    assert plan["simulated"]["goodput"] == pytest.approx(plan["goodput"], abs=0.001)
    assert plan["trace"] is None


def test_a_trace_sets_the_mtbf_and_is_simulated(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    fault = {"node_id": "a", "fault_type": {}}
    events = [
        {**fault, "event_time": 10.0, "event_type": "fault_start"},
        {**fault, "event_time": 100.0, "event_type": "fault_end"},
    ]
    path.write_text(json.dumps(events))
    trace = ("--fault-trace", str(path), "--trace-nodes", "5", "--json")
    plan = json.loads(run(*BASE, *trace))
    assert plan["assumptions"]["node_mtbf_s"] == pytest.approx(5 * 100 * 86_400)
    assert plan["trace"]["spare_nodes"] == 13
    plan = json.loads(run(*BASE, *trace, "--mtbf", "100d", "--spare-nodes", "0"))
    assert plan["assumptions"]["node_mtbf_s"] == pytest.approx(100 * 86_400)
    assert plan["trace"]["shares"]["waiting"] > 0.5


def test_the_mtbf_is_that_of_a_node_or_of_the_job() -> None:
    of_node = json.loads(run(*BASE, "--mtbf", "125h", "--json"))
    of_job = json.loads(run(*BASE, "--job-mtbf", "1h", "--json"))
    assert of_node == of_job
    assert of_job["mtbf_s"] == pytest.approx(3600)


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_fits_the_terminal(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_goodput(
        assume(gpus=10_000, memory_fraction=0.5, step_time_s=5.0), given_interval_s=600.0
    )
    console = Console(width=width, highlight=False, markup=False)
    print_goodput_plan(plan, console)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert f"checkpoint.interval_steps={plan.best_interval_steps}" in text
    assert "as asked for" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--interval-s", "20"], "takes 86.1 s at 20 GB/s; an interval of at least 86 s would fit"),
        (["--interval-s", "0"], "--interval-s must be from 0.001 to"),
        (["--job-mtbf", "20s"], "a node MTBF of at least .* days would fit, or at most 40 GPUs"),
        (["--step-time-s", "2000000"], "train a step .* would fit"),
        (["--mtbf", "14.3"], "is no duration"),
        (["--mtbf", "1h", "--job-mtbf", "1h"], "not both"),
        (["--gpus-per-node", "0"], "--gpus-per-node must be more than zero"),
        (["--blocked-s", "-1"], "--blocked-s must be from 0 to"),
        (["--blocked-s", "nan"], "--blocked-s must be from 0 to"),
        (["--restart-s", "inf"], "--restart-s must be from 0 to"),
        (["--step-time-s", "0"], "--step-time-s must be from 0.001 to"),
        (["--restart-from-memory-fraction", "1"], "a share of the failures"),
        (["--restart-from-memory-fraction", "75"], "a share of the failures"),
        (["--spare-nodes", "5"], "--spare-nodes has no use without --fault-trace"),
        (["--trace-nodes", "400"], "--trace-nodes has no use without --fault-trace"),
        (["--memory-interval-s", "60"], "no use without --restart-from-memory-fraction"),
        (["--blocked-s", "1e9"], r"blocked by a save 1e\+09 s.* at least 1.45e\+06 days would fit"),
        (["--mtbf", "1e300d"], r"MTBF of one node in seconds must be from 0.001 to 1e\+15"),
        (["--mtbf", "1e-320s"], "MTBF of one node in seconds must be from"),
        (["--write-bandwidth", "1e300B/s"], "--write-bandwidth .* must be from"),
        (["--gpus-per-node", "1" + 400 * "0"], "--gpus-per-node must be from 1"),
        (["--memory-restart-s", "1e300"], "--memory-restart-s must be from 0 to"),
        (
            [
                "--restart-from-memory-fraction=0.5",
                "--memory-interval-s=1e-3",
                "--write-bandwidth=1MB/s",
            ],
            "an interval of at least 26.28 s would fit",
        ),
        (["--restart-from-memory-fraction=0.5", "--memory-interval-s=1e300"], "must be from 0.001"),
        (
            ["--spare-nodes=-1", "--fault-trace=none.json", "--mtbf=1d"],
            "--spare-nodes must be from 0 to",
        ),
        (["--state-size", "1TB"], "not both"),
        (["--write-bandwidth", "0GB/s"], "more than zero"),
        (["--fault-trace", "none.json"], "cannot be read"),
        (
            ["--restart-from-memory-fraction=0.5", "--memory-interval-s=900", "--interval-s=600"],
            "at most 600 s would fit",
        ),
    ],
)
def test_impossible_input_is_refused_with_what_fits(options: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(*BASE, *options)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("0", "more than zero"),
        ("-8", "'-8' must be more than zero"),
        ("1.5", "must be a whole number"),
        ("many", "is no number"),
        ("1e300", "from 1 to"),
    ],
)
def test_gpus_are_a_whole_number_above_zero(gpus: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        run("plan", "goodput", "--gpus", gpus, "--parameters", "7B")


def test_the_size_of_a_checkpoint_must_be_said() -> None:
    with pytest.raises(InputError, match="--state-size"):
        run("plan", "goodput", "--gpus", "8")


def test_planning_imports_neither_prefect_nor_torch() -> None:
    code = (
        "import sys; from flows.cli import app; from typer.testing import CliRunner;"
        f"assert CliRunner().invoke(app, {BASE!r}).exit_code == 0;"
        "print(*({'prefect', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
