"""Runs whose failures the rules do not know, with a language model to ask: a real server, well and ill."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.testing.utilities import prefect_test_harness

from configs.errors import RunFailedError
from configs.load import load_config
from configs.records import Action, Verdict
from configs.rundir import RunDir
from configs.schema import RunConfig
from flows.prepare import prepare
from flows.pretrain import pretrain
from tests.flows.helpers import tiny_config
from tests.model_server import Behaviour, Handler, Server, drip, serve, status

pytestmark = pytest.mark.slow

WORDS = "[sim] FATAL mesh partition 3 has no cells"
PROGRAM = f"""\
import sys
for number in range(3):
    print("frobnicator", 17 + number, ": warm,", number, "plates")
print({WORDS!r}, flush=True)
sys.exit(44)
"""


@pytest.fixture(scope="module", autouse=True)
def harness() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


def asked_about(request: dict[str, Any]) -> str:
    """failure or routine: which of the two agents asks, by the schema that it wants."""
    properties = request["response_format"]["json_schema"]["schema"]["properties"]
    return "failure" if "quotes" in properties else "routine"


def filter_rules(request: dict[str, Any]) -> list[dict[str, Any]]:
    """One rule, where the segment that is asked about holds such a line."""
    found = re.search(r"^(\d+)\| frobnicator", request["messages"][-1]["content"], re.MULTILINE)
    if found is None:
        return []
    return [{"lines": [int(found[1])], "kind": "metrics", "pattern": r"^frobnicator \d+ : warm"}]


def answering(failure_class: str, category: str, at_fault: str) -> Behaviour:
    """A model that quotes the line and names this class, and knows one kind of routine line."""
    failure = {
        "quotes": [WORDS],
        "class": failure_class,
        "category": category,
        "at_fault": at_fault,
        "mitigation": "Look at the mesh service.",
        "rule": None,
    }

    def behave(handler: Handler) -> None:
        if asked_about(handler.asked) == "failure":
            handler.answer(json.dumps(failure))
        else:
            handler.answer(json.dumps({"rules": filter_rules(handler.asked)}))

    return behave


def config_of(folder: Path, server: Server, **diagnose: Any) -> RunConfig:
    """A run of which one rank ends with words that no rule knows."""
    program = folder / "hook.py"
    program.write_text(PROGRAM)
    config = tiny_config(
        folder,
        train={"steps": 6},
        checkpoint={"interval_steps": 2},
        faults=[{"kind": "script", "script": str(program), "step": 4, "rank": 0}],
        diagnose={
            "endpoint": server.url,
            "model": "tester",
            "store": str(folder / "store"),
            "retries": 0,
            **diagnose,
        },
    )
    return load_config(config)


def first_failure(run: RunDir) -> tuple[Verdict, Action]:
    verdict, action = run.attempts()[0].verdict(), run.attempts()[0].action()
    assert verdict is not None and action is not None
    return verdict, action


def learnt_rules(folder: Path) -> str:
    return "".join(path.read_text() for path in (folder / "store" / "filter_rules").rglob("*.yaml"))


@pytest.mark.soak
def test_what_the_model_answers_decides_what_rules_leave_open(tmp_path: Path) -> None:
    with serve(answering("ConnectionError", "infrastructure", "infrastructure")) as server:
        config = config_of(tmp_path, server, log_agent=True, log_agent_samples=1)
        prepare(config)
        pretrain(config)
        asked = [asked_about(request) for request in server.requests]
    run = RunDir(config.resolved_run_dir())
    verdict, action = first_failure(run)
    assert (verdict.failure_class, verdict.method) == ("ConnectionError", "language_model")
    assert WORDS in verdict.root_cause_text
    assert (action.kind, action.stop) == ("resubmit_later", False)
    assert [a.record().outcome for a in run.attempts()] == ["failed", "completed"]  # type: ignore[union-attr]
    assert asked.count("failure") == 1, "rules and retrieval were sure of nothing else"
    assert asked[0] == "failure" and "routine" in asked
    assert "frobnicator" in learnt_rules(tmp_path)


@pytest.mark.soak
def test_a_model_that_blames_the_user_stops_the_run(tmp_path: Path) -> None:
    with serve(answering("ConnectionError", "infrastructure", "user")) as server:
        config = config_of(tmp_path, server)
        prepare(config)
        with pytest.raises(RunFailedError, match="attempt 1 failed with ConnectionError"):
            pretrain(config)
        assert [asked_about(request) for request in server.requests] == ["failure"]
    verdict, action = first_failure(RunDir(config.resolved_run_dir()))
    assert verdict.method == "language_model"
    assert (action.kind, action.stop) == ("fix_by_user", True)


@pytest.mark.soak
@pytest.mark.parametrize(
    "behaviour",
    [pytest.param(drip, id="drips"), pytest.param(status(500), id="500")],
)
def test_a_server_that_misbehaves_leaves_the_rules_verdict_and_the_run_goes_on(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    with serve(behaviour) as server:
        config = config_of(tmp_path, server, timeout_s=1, log_agent=True, log_agent_samples=1)
        prepare(config)
        pretrain(config)
        assert server.requests
    run = RunDir(config.resolved_run_dir())
    verdict, action = first_failure(run)
    assert (verdict.failure_class, verdict.method) == ("Unknown", "rank_exited")
    assert verdict.evidence[-1].startswith("language model: ")
    assert verdict.evidence[-1].endswith("the verdict stands without it")
    assert (action.kind, action.stop) == ("resubmit_later", False)
    assert [a.record().outcome for a in run.attempts()] == ["failed", "completed"]  # type: ignore[union-attr]
    assert learnt_rules(tmp_path) == ""
