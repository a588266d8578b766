"""`overland chaos --evaluation`: evaluations of a tiny model whose processes are killed at random moments.

One evaluation is left alone. Each trial then makes the same, by the real command, and a worker, the
precursor, the scorer, the coordinator of inference or the command itself gets SIGKILL. Beside it stands
an operator who starts a command again that has ended without scores. The scores must equal the
undisturbed ones' bit for bit, and no shard that was answered may be answered again.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from configs.errors import InputError, RunFailedError
from flows.chaos.setup import kept_folder, trial_folder
from infra.launch import leash
from tasks.evaluate.chaos import (
    asked_tasks,
    progress_of,
    scores_of,
    shards_begun_again,
    shards_computed_twice,
    staged_copies,
)

Say = Callable[[str], None]
WORKERS = 2
TARGETS = ("worker", "precursor", "scorer", "coordinator", "command")
_MODULES = {
    "worker": "tasks.evaluate.worker",
    "precursor": "tasks.evaluate.precursor",
    "scorer": "tasks.evaluate.score",
    "coordinator": "tasks.evaluate.infer",
}
_LOOK_S = 0.02
_LIMIT_S = 300.0
_MAX_STARTS = 8
_TRIES = 3
_LEFTOVER_WAIT_S = 15.0


@dataclass(frozen=True)
class Blow:
    """One SIGKILL: to whom, and when."""

    target: str
    share: float
    """When this share of the shards is answered; 0 or less: while none is."""
    delay_s: float

    def __str__(self) -> str:
        when = f"after {self.share:.0%} of the shards" if self.share > 0 else "before any shard"
        return f"SIGKILL to the {self.target} {when} and {self.delay_s:.2f} s"


@dataclass(frozen=True)
class Setting:
    """What all trials share."""

    folder: Path
    environment: dict[str, str]
    tasks: list[str]
    reference: list[list[Any]]

    def command(self, out: Path) -> list[str]:
        """The real command, on a leash: it does not outlive this process."""
        return [
            *(sys.executable, str(Path(leash.__file__).resolve()), "-m", "flows.cli", "evaluate"),
            *(str(self.folder / "model"), "--tasks", ",".join(self.tasks)),
            *("--task-dir", str(self.folder / "tasks"), "--out", str(out)),
            *("--workers", str(WORKERS), "--bootstrap", "100", "--gpus", "none"),
        ]


def make_blows(seed: int, number: int) -> tuple[Blow, ...]:
    """Those of one trial: all targets come in turn, and one trial in four is struck twice."""
    draw = random.Random(f"{seed}-{number}")  # noqa: S311
    first = TARGETS[(number - 1) % len(TARGETS)]
    targets = [first, *([draw.choice(TARGETS)] if number % 4 == 0 else [])]
    blows = []
    for target in targets:
        share = draw.uniform(-0.2, 0.8)
        # Before the first shard the processes start, which takes seconds.
        delay_s = draw.uniform(0.0, 0.2) if share > 0 else draw.uniform(0.0, 4.0)
        blows.append(Blow(target, share, delay_s))
    return tuple(blows)


def run_evaluation_chaos(
    *,
    trials: int,
    seed: int,
    only: Collection[int] | None = None,
    folder: Path | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Run the trials; returns what they have shown. `only`: these numbers of all."""
    if trials < 1:
        raise InputError(f"--runs must be at least 1, not {trials}")
    numbers = [n for n in range(1, trials + 1) if only is None or n in only]
    if not numbers:
        raise InputError(f"--trial {only} is none of --runs {trials}")
    made, started = folder is None, time.monotonic()
    folder = trial_folder(folder)
    setting = _prepare(folder, seed, say)
    details = [_trial(setting, n, make_blows(seed, n), trials, say) for n in numbers]
    failed = [trial["number"] for trial in details if trial["problems"]]
    return {
        "trials": len(details),
        "identical": sum(trial["identical"] for trial in details),
        "shards_twice": sum(len(trial["shards_twice"]) for trial in details),
        "shards_begun_again": sum(trial["shards_begun_again"] for trial in details),
        "workers_lost": sum(trial["workers_lost"] for trial in details),
        "strikes": dict(Counter(b["target"] for t in details for b in t["struck"])),
        "failed": failed,
        "seed": seed,
        "duration_s": time.monotonic() - started,
        "folder": kept_folder(folder, made=made, failed=bool(failed)),
        "details": details,
    }


def _prepare(folder: Path, seed: int, say: Say) -> Setting:
    """The model, the tasks, and the evaluation that is left alone."""
    others = {k: v for k, v in os.environ.items() if not k.startswith("OVERLAND_")}
    # Tiny models say nothing about the user's.
    environment = others | {"OVERLAND_PRIORS": str(folder / "priors.db"), "PYTHONSAFEPATH": "1"}
    made = subprocess.run(
        [sys.executable, "-m", "tasks.evaluate.chaos", str(folder), str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise RunFailedError(f"the tiny model could not be made: {made.stderr[-2000:]}")
    setting = Setting(folder, environment, asked_tasks(), reference=[])
    out = folder / "undisturbed"
    course = _run(setting, out, ())
    reference = scores_of(out)
    if reference is None or course.starts != 1:
        raise RunFailedError(f"the undisturbed evaluation has failed: look at {out}")
    say(f"undisturbed: {course.wall_s:.0f} s, {progress_of(out).shards} shards")
    shutil.rmtree(out)
    return replace(setting, reference=reference)


@dataclass
class Course:
    """How an evaluation went."""

    starts: int
    struck: list[tuple[Blow, float]]
    """Each with which share of the shards was answered."""
    workers_lost: int
    wall_s: float
    exit_code: int | None


def _trial(
    setting: Setting, number: int, blows: tuple[Blow, ...], of: int, say: Say
) -> dict[str, Any]:
    out = setting.folder / f"trial_{number:03d}"
    for _ in range(_TRIES):
        course = _run(setting, out, blows)
        if course.struck or course.exit_code != 0:
            break
        shutil.rmtree(out, ignore_errors=True)  # its process had ended by then
        blows = tuple(replace(blow, share=blow.share / 2, delay_s=0.0) for blow in blows)
    left = _leftovers(out)
    twice, again = shards_computed_twice(out), shards_begun_again(out)
    identical = scores_of(out) == setting.reference
    problems = [f"left behind: {what}" for what in left]
    if course.exit_code != 0:
        problems.append(f"the command ended with {course.exit_code}")
    elif not identical:
        problems.append("other scores than undisturbed")
    if twice:
        problems.append(f"answered twice: {', '.join(twice)}")
    if again > course.workers_lost:
        problems.append(f"{again} shards were begun again, and {course.workers_lost} workers died")
    if not course.struck:
        problems.append("never struck")
    found = {
        "number": number,
        "planned": [str(blow) for blow in blows],
        "struck": [
            {"target": blow.target, "planned_share": blow.share, "share": share}
            for blow, share in course.struck
        ],
        "identical": identical,
        "shards_twice": twice,
        "shards_begun_again": again,
        "workers_lost": course.workers_lost,
        "starts": course.starts,
        "wall_s": course.wall_s,
        "problems": problems,
    }
    if not problems:
        shutil.rmtree(out)
    result = "identical" if not problems else f"FAILED: {'; '.join(problems)}; see {out}"
    struck = " and ".join(str(blow) for blow, _ in course.struck)
    say(f"trial {number} of {of}: {struck}; {result} ({course.wall_s:.0f} s)")
    return found


def _run(setting: Setting, out: Path, blows: tuple[Blow, ...]) -> Course:
    """Run the command until it has scores, and strike; the operator starts it again when it fails."""
    course = Course(0, [], 0, 0.0, None)
    waiting, began = list(blows), time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(setting.folder / f"{out.name}.log", "ab") as log:
        while course.starts < _MAX_STARTS:
            course.starts += 1
            process = subprocess.Popen(
                setting.command(out), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=setting.environment, start_new_session=True,
            )  # fmt: skip
            try:
                while process.poll() is None and time.monotonic() - began < _LIMIT_S:
                    if waiting and _strike(process.pid, out, waiting[0], course):
                        waiting.pop(0)
                    time.sleep(_LOOK_S)
            finally:
                process.kill()
            course.exit_code = process.wait()
            if course.exit_code == 0 or time.monotonic() - began >= _LIMIT_S:
                break
    course.wall_s = time.monotonic() - began
    return course


def _strike(command_pid: int, out: Path, blow: Blow, course: Course) -> bool:
    """Strike if the moment has come; returns whether it was done."""
    progress = progress_of(out)
    share = progress.shards / progress.shards_in_all if progress.shards_in_all else 0.0
    if share < blow.share:
        return False
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(command_pid).children(recursive=True)
        aims = [p for p in below if _is_a(p, blow.target)]
        if blow.target == "command":
            aims = [psutil.Process(command_pid)]
        if not aims:
            return False
        aim = aims[int(blow.delay_s * 1e6) % len(aims)]
        time.sleep(blow.delay_s)
        below = psutil.Process(command_pid).children(recursive=True)
        workers = sum(_is_a(p, "worker") for p in below)
        aim.kill()
        course.struck.append((blow, share))
        course.workers_lost += {"worker": 1, "precursor": 0, "scorer": 0}.get(blow.target, workers)
        return True
    return False


def _is_a(process: psutil.Process, target: str) -> bool:
    with suppress(psutil.Error):
        return _MODULES.get(target) in process.cmdline()
    return False


def _leftovers(out: Path) -> list[str]:
    """Processes that are left of the evaluation, and copies of the model in memory."""
    deadline = time.monotonic() + _LEFTOVER_WAIT_S
    while (found := _processes(out)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [*found, *map(str, staged_copies(out))]


def _processes(out: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if process.pid != os.getpid() and str(out) in command:
                found.append(" ".join(command))
    return found
