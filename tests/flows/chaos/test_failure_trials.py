"""The parts of `overland chaos --failures` that need no run: what is caused, and what counts as right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import EXIT_RUN_FAILED, InputError
from configs.events import FaultEvent
from configs.files import append_json_line
from configs.load import load_config
from configs.records import AttemptRecord
from configs.rundir import RunDir, write_record
from flows.chaos.failure_trials import (
    Failure,
    FailureTrial,
    base_config,
    chosen_failures,
    known_failures,
    write_trial,
)
from flows.chaos.failures import judge, run_failures, summarize
from flows.chaos.trial import Course
from flows.chaos.verdict import Outcome
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.verdicts import make_verdict

REFERENCE = Outcome({6: (2.0, 1.0, 0.1)}, {}, "a digest")


def write_all(folder: Path, seed: int) -> list[FailureTrial]:
    folder.mkdir()
    corpus = folder / "corpus.jsonl"
    corpus.write_text("{}\n")
    base = base_config(folder, corpus, seed)
    return [write_trial(folder, base, n, failure, seed) for n, failure in chosen_failures(())]


def faults_of(trials: list[FailureTrial]) -> list[dict[str, Any]]:
    configs = (yaml.safe_load(trial.config_path.read_text()) for trial in trials)
    return [fault for config in configs for fault in config["faults"]]


def test_every_failure_class_is_caused_and_every_name_is_its_own() -> None:
    failures = known_failures()
    assert {failure.failure_class for failure in failures} == set(CLASSES)
    assert len({failure.name for failure in failures}) == len(failures)


def test_every_failure_can_strike_and_follows_from_the_seed(tmp_path: Path) -> None:
    one, again, other = (
        write_all(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for trial in one:
        load_config(trial.config_path)  # refuses what cannot strike
    places = [
        [(f.get("rank"), f["step"]) for f in faults_of(trials)] for trials in (one, again, other)
    ]
    assert places[0] == places[1] != places[2]


def test_the_program_in_a_traceback_does_not_tell_which_failure_it_is(tmp_path: Path) -> None:
    programs = [f["script"] for f in faults_of(write_all(tmp_path / "all", 0)) if "script" in f]
    assert programs
    assert all(re.fullmatch(r"hook_\d+_\d\.py", Path(program).name) for program in programs)


def test_classes_and_failures_are_chosen_by_name() -> None:
    chosen = chosen_failures(["Hang", "kill"])
    assert [failure.name for _, failure in chosen] == ["kill", "hang"]
    assert [known_failures()[number - 1] for number, _ in chosen] == [f for _, f in chosen]


def test_a_class_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'KeyErrr' is no failure class .*; KeyError is one"):
        run_failures(classes=["KeyErrr"], folder=tmp_path / "trials")
    assert not (tmp_path / "trials").exists()


# --- what counts as right ---------------------------------------------------------------------------


def failure(failure_class: str, action: str, **fields: Any) -> Failure:
    given = {"name": "x", "class": failure_class, "action": action, "how": "caused", **fields}
    return Failure.model_validate(given)


def judged(
    run: RunDir, wanted: Failure, found: str, *, attempts: int = 1, exit_code: int | None = 0
) -> dict[str, Any]:
    """What is made of a run whose first attempt got this verdict."""
    for number in range(1, attempts + 1):
        outcome = "failed" if number == 1 or exit_code else "completed"
        record = AttemptRecord(
            number=number, key="k", job_id="j", submitted_at=0.0, ended_at=1.0, outcome=outcome
        )  # fmt: skip
        write_record(run.attempt(number).record_path, record)
    write_record(run.attempt(1).verdict_path, make_verdict(found, method="rule", confidence=0.9))
    event = FaultEvent(time=1.0, step=6, rank=1, kind="script")
    append_json_line(run.attempt(1).events_path, event.model_dump())
    return judge(wanted, run, Course(exit_code, [], 1, 0, 9.0), REFERENCE)


def test_a_run_that_stops_for_a_person_is_right(tmp_path: Path) -> None:
    wanted = failure("KeyError", "fix_by_user")
    found = judged(RunDir(tmp_path), wanted, "KeyError", exit_code=EXIT_RUN_FAILED)
    assert found["right_verdict"] and found["right_action"] and not found["wrong_restart"]
    assert found["problems"] == []


def test_a_restart_where_a_person_is_needed_is_wrong(tmp_path: Path) -> None:
    wanted = failure("KeyError", "fix_by_user")
    found = judged(RunDir(tmp_path), wanted, "ConnectionError", attempts=2)
    assert found["wrong_restart"] and not found["right_verdict"] and not found["right_action"]
    assert found["problems"] == [
        "ConnectionError instead of KeyError",
        "resubmit_later instead of fix_by_user",
        "it was restarted, and a person was needed",
    ]


def test_a_stop_where_nobody_is_needed_is_wrong(tmp_path: Path) -> None:
    wanted = failure("Hang", "restart_same_nodes")
    found = judged(RunDir(tmp_path), wanted, "Hang", exit_code=EXIT_RUN_FAILED)
    assert found["right_verdict"] and not found["right_action"] and not found["went_on_alone"]
    assert found["problems"] == ["the command ended with 1"]


@pytest.mark.parametrize("same", [True, False])
def test_a_result_that_differs_is_wrong_unless_data_was_skipped(tmp_path: Path, same: bool) -> None:
    """Its last checkpoint is not even there."""
    run = RunDir(tmp_path)
    wanted = failure("LossSpike", "rollback_skip_data", same=same)
    found = judged(run, wanted, "LossSpike", attempts=2)
    assert found["went_on_alone"] is not same
    assert bool(found["problems"]) is same


def test_a_failure_that_was_not_caused_counts_for_nothing(tmp_path: Path) -> None:
    course = Course(0, [], 1, 0, 9.0)
    wanted = failure("NoFailure", "none", same=False)
    record = AttemptRecord(
        number=1, key="k", job_id="j", submitted_at=0.0, ended_at=1.0, outcome="completed"
    )
    write_record(RunDir(tmp_path).attempt(1).record_path, record)
    found = judge(wanted, RunDir(tmp_path), course, REFERENCE)
    assert not found["right_verdict"] and not found["went_on_alone"]
    assert found["problems"][0] == "the failure was not caused"


def test_the_share_is_of_those_that_need_nobody(tmp_path: Path) -> None:
    stopped, ended = EXIT_RUN_FAILED, failure("SlurmCancelled", "none")
    details = [
        judged(RunDir(tmp_path / "a"), ended, "SlurmCancelled", exit_code=stopped),
        judged(RunDir(tmp_path / "b"), failure("Hang", "restart_same_nodes"), "Hang", exit_code=1),
        judged(
            RunDir(tmp_path / "c"),
            failure("Unknown", "resubmit_later", same=False),
            "Unknown",
            attempts=2,
        ),
    ]
    report = summarize(details, seed=3)
    assert (report["trials"], report["need_nobody"], report["went_on_alone"]) == (3, 2, 1)
    assert report["unattended_share"] == 0.5
    assert (report["right_verdicts"], report["right_actions"], report["wrong_restarts"]) == (
        3,
        2,
        0,
    )
    assert summarize(details[:1], seed=3)["unattended_share"] is None
