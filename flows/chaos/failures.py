"""`overland chaos --failures`: small real runs that fail in every way that can be caused here.

One run is left alone. Each trial trains the same, by the real command, and meets one failure in its
first attempt. The verdict and its action must be the right ones. Where nobody is needed the run must
finish by itself, with the undisturbed run's result bit for bit; where a person is, it must stop.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from configs.errors import EXIT_RUN_FAILED, CheckpointError, RunFailedError
from configs.events import Event, FaultEvent, StepEvent, ValidationEvent
from configs.records import AttemptRecord, Verdict
from configs.rundir import RunDir
from flows.chaos.failure_trials import (
    STEPS,
    Failure,
    FailureTrial,
    base_config,
    chosen_failures,
    write_trial,
)
from flows.chaos.schedule import Plan, Timeline
from flows.chaos.setup import (
    copy_prepared,
    kept_folder,
    prepare,
    trial_environment,
    trial_folder,
    write_corpus,
)
from flows.chaos.trial import Course, leftovers, run_trial
from flows.chaos.verdict import Outcome, differences, outcome_of
from flows.prefect_server import start_prefect_server
from flows.servers import stop
from tasks.train.chaos import digest_of_checkpoint

Say = Callable[[str], None]
_RESULTS = (StepEvent, ValidationEvent)
_NO_STRIKES = Plan(0, ())
_NO_TIMES = Timeline(startup_s=0.0, step_s=1.0, closing_s=0.0, steps=STEPS)


@dataclass(frozen=True)
class Ground:
    """What all trials share."""

    folder: Path
    base: dict[str, Any]
    environment: dict[str, str]
    prepared: RunDir
    reference: Outcome


def run_failures(
    *,
    classes: Sequence[str] = (),
    seed: int = 0,
    folder: Path | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Run a trial of each failure, or of those of these classes; returns what they have shown.

    Directories of trials that failed stay in `folder`.
    """
    chosen = chosen_failures(classes)
    made = folder is None
    folder = trial_folder(folder)
    started = time.time()
    details = []
    with _opened(folder, seed, say) as ground:
        for place, (number, failure) in enumerate(chosen, start=1):
            found = _trial(ground, write_trial(folder, ground.base, number, failure, seed))
            say(f"trial {place} of {len(chosen)}, {failure.name}: {_sentence(found)}")
            details.append(found)
    report = summarize(details, seed=seed)
    report |= {
        "duration_s": time.time() - started,
        "folder": kept_folder(folder, made=made, failed=bool(report["failed"])),
        "details": details,
    }
    return report


def summarize(details: list[dict[str, Any]], *, seed: int) -> dict[str, Any]:
    """The figures over all trials."""
    alone = [trial for trial in details if not trial["needs_a_person"]]
    return {
        "trials": len(details),
        "failure_classes": len({trial["class"] for trial in details}),
        "right_verdicts": sum(trial["right_verdict"] for trial in details),
        "right_actions": sum(trial["right_action"] for trial in details),
        "wrong_restarts": sum(trial["wrong_restart"] for trial in details),
        "need_nobody": len(alone),
        "went_on_alone": sum(trial["went_on_alone"] for trial in alone),
        "unattended_share": (
            sum(trial["went_on_alone"] for trial in alone) / len(alone) if alone else None
        ),
        "failed": [trial["name"] for trial in details if trial["problems"]],
        "seed": seed,
    }


@contextmanager
def _opened(folder: Path, seed: int, say: Say) -> Iterator[Ground]:
    """Text, data, a Prefect server, and the undisturbed run."""
    base = base_config(folder, write_corpus(folder, seed), seed)
    config_path = folder / "config.yaml"
    config_path.write_text(yaml.safe_dump(base, sort_keys=False))
    prefect_home = folder / "prefect"
    server, url = start_prefect_server(trial_environment(prefect_home))
    try:
        environment = trial_environment(prefect_home, url)
        prepared = RunDir(folder / "prepared")
        prepare(config_path, prepared.path, environment)
        run = RunDir(folder / "undisturbed")
        copy_prepared(prepared, run)
        course = run_trial(run, _NO_STRIKES, config_path, _NO_TIMES, environment)
        if course.exit_code != 0 or len(run.attempts()) != 1:
            raise RunFailedError(
                f"the undisturbed run did not go through in one attempt (exit code "
                f"{course.exit_code}): look at {run.path}"
            )
        reference = outcome_of(run.attempts()[0].events(), digest_of_checkpoint(run, STEPS))
        say(f"undisturbed: {course.wall_s:.0f} s")
        shutil.rmtree(run.path)
        yield Ground(folder, base, environment, prepared, reference)
    finally:
        stop(server)


def _trial(ground: Ground, trial: FailureTrial) -> dict[str, Any]:
    run = RunDir(ground.folder / f"trial_{trial.number:03d}")
    copy_prepared(ground.prepared, run)
    course = run_trial(run, _NO_STRIKES, trial.config_path, _NO_TIMES, ground.environment)
    found = judge(trial.failure, run, course, ground.reference)
    if left := leftovers(run, is_done=course.exit_code == 0):
        found["problems"].append(f"left behind: {'; '.join(left)}")
    found["run_dir"] = str(run.path) if found["problems"] else None
    if not found["problems"]:
        shutil.rmtree(run.path)
    return found


def judge(failure: Failure, run: RunDir, course: Course, reference: Outcome) -> dict[str, Any]:
    """What a trial has shown, and its `problems`: whatever is not as it should be."""
    attempts = run.attempts()
    first = attempts[0] if attempts else None
    verdict = first.verdict() if first else None
    found_class, found_action = _found(verdict, first.record() if first else None)
    events = [event for attempt in attempts for event in attempt.events()]
    restarted, done = len(attempts) > 1, course.exit_code == 0
    is_struck = any(isinstance(event, FaultEvent) for event in events)
    must_be_same = done and failure.same and not failure.needs_a_person
    other = _other_than(reference, run, events) if must_be_same else []
    right_end = (
        not restarted and course.exit_code == EXIT_RUN_FAILED
        if failure.needs_a_person
        else done and not other
    )
    found: dict[str, Any] = {
        "name": failure.name,
        "how": failure.how,
        "class": failure.failure_class,
        "found_class": found_class,
        "action": failure.action,
        "found_action": found_action,
        "method": verdict.method if verdict else None,
        "rank": verdict.faulty_rank if verdict else None,
        "root_cause_text": verdict.root_cause_text if verdict else "",
        "needs_a_person": failure.needs_a_person,
        "restarts": max(len(attempts) - 1, 0),
        "finished": done,
        "right_verdict": is_struck and found_class == failure.failure_class,
        "right_action": is_struck and found_action == failure.action and right_end,
        "wrong_restart": failure.needs_a_person and restarted,
        "went_on_alone": is_struck and not failure.needs_a_person and right_end,
        "wall_s": course.wall_s,
        "problems": list(other),
    }
    problems = found["problems"]
    if not is_struck:
        problems.append("the failure was not caused")
    if not found["right_verdict"]:
        problems.append(f"{found_class} instead of {failure.failure_class}")
    if found_action != failure.action:
        problems.append(f"{found_action} instead of {failure.action}")
    if not right_end and not other:
        problems.append(_end(failure, course, restarted))
    return found


def _found(verdict: Verdict | None, record: AttemptRecord | None) -> tuple[str | None, str | None]:
    """Class and action; an attempt that is done, or stopped when asked to, has no verdict."""
    if verdict is not None:
        return verdict.failure_class, verdict.action
    if record is not None and record.outcome in ("completed", "stopped"):
        return "NoFailure", "none"
    return None, None


def _other_than(reference: Outcome, run: RunDir, events: list[Event]) -> list[str]:
    """What of the result is not the undisturbed run's. Steps that were made again count as made last."""
    last = {(event.event, event.step): event for event in events if isinstance(event, _RESULTS)}
    try:
        return differences(reference, last.values(), digest_of_checkpoint(run, STEPS))
    except CheckpointError as error:
        return [str(error)]


def _end(failure: Failure, course: Course, restarted: bool) -> str:
    if course.exit_code is None:
        return f"not done within {course.wall_s:.0f} s"
    if failure.needs_a_person and restarted:
        return "it was restarted, and a person was needed"
    return f"the command ended with {course.exit_code}"


def _sentence(found: dict[str, Any]) -> str:
    end = "finished" if found["finished"] else "stopped"
    if found["restarts"]:
        end = f"restarted, {end}"
    text = f"{found['found_class']}, {found['found_action']}, {end}"
    if found["problems"]:
        text += f"; WRONG: {'; '.join(found['problems'])}; see {found['run_dir']}"
    return f"{text} ({found['wall_s']:.0f} s)"
