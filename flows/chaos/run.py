"""`overland chaos`: small real runs whose processes are killed and stopped at random moments.

One run is left alone. Each trial then runs the same, from its first step, and strikes one of its
processes (a rank, a rank's checkpoint writer, the torchrun agent, the flow) with SIGKILL or SIGSTOP:
at any time, in the middle of a save, or in the middle of a commit. Every step and the last checkpoint
must equal the undisturbed run's bit for bit, and no step may be made again that a committed checkpoint
or a snapshot in the node's memory held.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.errors import InputError, RunFailedError
from configs.events import StepEvent
from configs.rundir import RunDir
from flows.chaos.schedule import Plan, Timeline
from flows.chaos.setup import (
    INTERVAL_STEPS,
    STEPS,
    copy_prepared,
    kept_folder,
    prepare,
    trial_environment,
    trial_folder,
    write_config,
    write_corpus,
)
from flows.chaos.site import Site
from flows.chaos.trial import LOCAL, Course, judge, leftovers, run_trial
from flows.chaos.verdict import Outcome, outcome_of
from flows.prefect_server import start_prefect_server
from flows.servers import stop
from tasks.train.chaos import digest_of_checkpoint

Say = Callable[[str], None]
_TRIES = 3
"""A trial whose run was done before the strike is made again, with an earlier one."""


@dataclass(frozen=True)
class Chaos:
    """What all trials share."""

    folder: Path
    config_path: Path
    environment: dict[str, str]
    prepared: RunDir
    reference: Outcome
    timeline: Timeline
    site: Site

    def run_dir(self, name: str) -> RunDir:
        return RunDir(self.folder / name)


def run_chaos(
    *,
    trials: int,
    seed: int,
    only: int | None = None,
    folder: Path | None = None,
    say: Say = lambda _: None,
    plans: list[Plan] | None = None,
    site: Site = LOCAL,
) -> dict[str, Any]:
    """Run the trials; returns what they have shown.

    `identical` counts trials, `lost_steps` adds up, `restart_s` is a median over all restarts of
    training (None without any). Directories of trials that failed stay in `folder`. `plans` are made
    from the seed where they are not given; of these, only the one of number `only` is run if that is
    not None.
    """
    if trials < 1:
        raise InputError(f"--runs must be at least 1, not {trials}")
    if only is not None and only > trials:
        raise InputError(f"--trial {only} is none of --runs {trials}")
    made = folder is None
    folder = trial_folder(folder)
    plans = plans or site.plans(seed, trials)
    plans = [plan for plan in plans if only in (None, plan.number)]
    started = time.time()
    with _opened(folder, seed, say, site) as chaos:
        details = [_trial(chaos, plan, trials, say) for plan in plans]
    report = summarize(details, seed=seed)
    report |= {
        "launcher": site.name,
        "undisturbed": {**vars(chaos.timeline), "digest": chaos.reference.digest},
        "duration_s": time.time() - started,
        "folder": kept_folder(folder, made=made, failed=bool(report["failed"])),
        "details": details,
    }
    return report


def summarize(details: list[dict[str, Any]], *, seed: int) -> dict[str, Any]:
    """The figures over all trials."""
    restarts = [restart for trial in details for restart in trial["restarts"]]
    times = [r["restart_s"] for r in restarts if r["restart_s"] is not None]
    strikes = [strike for trial in details for strike in trial["strikes"]]
    counts = {
        f"{strike['target']} {strike['signal']} {strike['when']}": 0
        for strike in sorted(strikes, key=lambda s: (s["target"], s["signal"], s["when"]))
    }
    for strike in strikes:
        counts[f"{strike['target']} {strike['signal']} {strike['when']}"] += 1
    on_cluster = {
        key: sum(trial[key] for trial in details)
        for key in ("duplicate_jobs", "orphan_jobs")
        if all(key in trial for trial in details)
    }
    return {
        "trials": len(details),
        "identical": sum(trial["identical"] for trial in details),
        "lost_steps": sum(trial["lost_steps"] for trial in details),
        "restart_s": statistics.median(times) if times else None,
        "failed": [trial["number"] for trial in details if _has_failed(trial)],
        "seed": seed,
        "restarts": len(restarts),
        "strikes": counts,
        "in_the_middle": sum(strike["is_hit"] for strike in strikes),
        **on_cluster,
    }


def _has_failed(trial: dict[str, Any]) -> bool:
    return bool(
        not trial["identical"]
        or trial["lost_steps"]
        or trial["leftovers"]
        or not trial["strikes"]
        or trial.get("duplicate_jobs")
        or trial.get("orphan_jobs")
    )


@contextmanager
def _opened(folder: Path, seed: int, say: Say, site: Site) -> Iterator[Chaos]:
    """Text, data, a Prefect server, and the undisturbed run."""
    config_path = write_config(folder, write_corpus(folder, seed), seed, site.config())
    prefect_home = folder / "prefect"
    server, url = start_prefect_server(trial_environment(prefect_home))
    try:
        environment = trial_environment(prefect_home, url)
        prepared = RunDir(folder / "prepared")
        prepare(config_path, prepared.path, environment)
        reference, timeline = _undisturbed(folder, config_path, prepared, environment, site)
        say(
            f"undisturbed: {timeline.total_s:.0f} s, of which {timeline.startup_s:.0f} s to the first "
            f"step; {timeline.step_s:.2f} s a step"
        )
        yield Chaos(folder, config_path, environment, prepared, reference, timeline, site)
    finally:
        stop(server)


def _undisturbed(
    folder: Path, config_path: Path, prepared: RunDir, environment: dict[str, str], site: Site
) -> tuple[Outcome, Timeline]:
    """The run that all trials are compared with, and how long its parts took."""
    run = RunDir(folder / "undisturbed")
    copy_prepared(prepared, run)
    nothing = Timeline(startup_s=0.0, step_s=1.0, closing_s=0.0, steps=STEPS)
    course = run_trial(run, Plan(0, ()), config_path, nothing, environment, site)
    attempts = run.attempts()
    if course.exit_code != 0 or len(attempts) != 1:
        raise RunFailedError(
            f"the undisturbed run did not go through in one attempt (exit code {course.exit_code}): "
            f"look at {run.path}"
        )
    events, record = attempts[0].events(), attempts[0].record()
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert record is not None and record.ended_at is not None
    first, last = steps[0], steps[-1]
    timeline = Timeline(
        startup_s=first.time - first.step_time_s - record.submitted_at,
        step_s=(last.time - first.time) / (len(steps) - 1),
        closing_s=record.ended_at - last.time,
        steps=STEPS,
    )
    outcome = outcome_of(events, digest_of_checkpoint(run, STEPS))
    if left := leftovers(run, is_done=True):
        raise RunFailedError(f"the undisturbed run has left behind: {'; '.join(left)}")
    shutil.rmtree(run.path)
    return outcome, timeline


def _trial(chaos: Chaos, plan: Plan, of: int, say: Say) -> dict[str, Any]:
    """One trial, made again where the run was done before it could be struck."""
    for attempt in range(1, _TRIES + 1):
        run = chaos.run_dir(f"trial_{plan.number:03d}" + (f"_try_{attempt}" if attempt > 1 else ""))
        copy_prepared(chaos.prepared, run)
        course = run_trial(
            run, plan, chaos.config_path, chaos.timeline, chaos.environment, chaos.site
        )
        found = judge(run, plan, course, chaos.reference)
        found |= chaos.site.put_right(run)
        found["leftovers"] = leftovers(run, is_done=course.exit_code == 0)
        found["run_dir"] = str(run.path) if _has_failed(found) else None
        if found["strikes"] or not found["identical"]:
            break
        shutil.rmtree(run.path)
        plan = _earlier(plan)
    if not _has_failed(found):
        shutil.rmtree(run.path)
    say(f"trial {plan.number} of {of}: {_sentence(found, course)}")
    return found


def _earlier(plan: Plan) -> Plan:
    """The same trial, struck earlier: its process was gone by then."""
    first, *others = plan.strikes
    moment = first.moment
    step = max(moment.step // 2 // INTERVAL_STEPS, 1) * INTERVAL_STEPS if moment.step else 0
    moment = replace(moment, fraction=moment.fraction * 0.8, step=step)
    return replace(plan, strikes=(replace(first, moment=moment), *others))


def _sentence(found: dict[str, Any], course: Course) -> str:
    strikes = " and ".join(str(s.strike) for s in course.struck) or "no strike"
    result = (
        "identical" if found["identical"] else f"NOT identical ({'; '.join(found['problems'])})"
    )
    restarts = [f"{r['restart_s']:.1f} s" for r in found["restarts"] if r["restart_s"] is not None]
    parts = [strikes, result]
    if restarts:
        parts.append(f"restarted in {', '.join(restarts)}")
    if found["lost_steps"]:
        parts.append(f"{found['lost_steps']} STEPS LOST")
    if found["leftovers"]:
        parts.append(f"LEFT BEHIND {found['leftovers']}")
    for key in ("duplicate_jobs", "orphan_jobs"):
        if found.get(key):
            parts.append(f"{found[key]} {key.replace('_', ' ').upper()}")
    if found["run_dir"]:
        parts.append(f"see {found['run_dir']}")
    return f"{'; '.join(parts)} ({course.wall_s:.0f} s)"
