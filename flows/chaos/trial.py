"""One trial of `overland chaos`: the real command, struck, with an operator beside it.

The operator does what a person or a service manager does: a flow that died is started again, one that
has been stopped for some seconds is killed and started again. All else is the flow's to mend.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from configs.errors import CheckpointError
from configs.events import Event
from configs.rundir import RunDir
from flows.chaos.local_site import LocalSite
from flows.chaos.schedule import Plan, Timeline
from flows.chaos.setup import INTERVAL_STEPS, RANKS, STEPS, config_for, flow_command
from flows.chaos.site import Site, processes_of
from flows.chaos.strike import PAUSE_S, Striker, Struck
from flows.chaos.verdict import Outcome, differences, restarts_of, to_json
from infra.launch import make_launcher
from tasks.train.chaos import digest_of_checkpoint, give_memory_back

LOCAL = LocalSite()
_LOOK_INTERVAL_S = 0.5
_SILENCE_S = 3.0
"""A flow that has been stopped for so long is killed by the operator."""
_LEFTOVER_WAIT_S = 15.0


@dataclass
class Operator:
    """Keeps a run's flow going until it is done."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    starts: int = 0
    killed: int = 0
    """Stopped flows that it had to kill."""
    _flow: subprocess.Popen[bytes] | None = None
    _looked_at: float = 0.0
    _stopped_since: float | None = None

    @property
    def pid(self) -> int:
        """The live flow's."""
        assert self._flow is not None
        return self._flow.pid

    def start(self) -> None:
        """Start the flow, as a terminal does: with a process group of its own."""
        with open(self.log, "ab") as log:
            self._flow = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        self.starts += 1
        self._stopped_since = None

    def look(self) -> int | None:
        """See to the flow; its exit code once it has ended by itself."""
        assert self._flow is not None
        code = self._flow.poll()
        if code is None:
            self._look_for_silence()
            return None
        if code >= 0:
            return code
        self.start()
        return None

    def end(self) -> None:
        """Kill the flow, if it lives."""
        if self._flow is not None and self._flow.poll() is None:
            self._flow.kill()
            self._flow.wait()

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_INTERVAL_S:
            return
        self._looked_at = now
        is_stopped = False
        with suppress(psutil.NoSuchProcess):
            is_stopped = psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        if not is_stopped:
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since > _SILENCE_S:
            self.killed += 1
            self.end()


@dataclass(frozen=True)
class Course:
    """How a trial went."""

    exit_code: int | None
    """None when it was not done within the site's limit."""
    struck: list[Struck]
    flow_starts: int
    flows_killed: int
    wall_s: float


def run_trial(
    run: RunDir,
    plan: Plan,
    config_path: Path,
    timeline: Timeline,
    environment: dict[str, str],
    site: Site = LOCAL,
) -> Course:
    """Run and strike; returns when the flow is done, or the time is over."""
    striker = Striker(
        run, plan.strikes, timeline, ranks=RANKS, interval_steps=INTERVAL_STEPS, site=site
    )  # fmt: skip
    memory = () if plan.keeps_memory else ("checkpoint.memory=off",)
    command = flow_command("pretrain", config_path, run.path, *memory)
    operator = Operator(command, environment, run.path / "operator.log")
    started = time.monotonic()
    exit_code: int | None = None
    operator.start()
    try:
        while exit_code is None and time.monotonic() - started < site.trial_limit_s:
            time.sleep(striker.poll(operator.pid))
            site.tend()
            exit_code = operator.look()
    finally:
        operator.end()
        if exit_code != 0:
            site.put_right(run)
            end_job(run, config_path)
            give_memory_back(run)
    return Course(
        exit_code=exit_code,
        struck=striker.made,
        flow_starts=operator.starts,
        flows_killed=operator.killed,
        wall_s=time.monotonic() - started,
    )


def end_job(run: RunDir, config_path: Path) -> None:
    """End what a flow has left running."""
    launcher = make_launcher(config_for(config_path, run.path).launcher)
    for attempt in run.attempts()[-1:]:
        if (handle := launcher.find(attempt.job_dir)) is not None:
            launcher.cancel(handle, grace_s=0.0)


def judge(run: RunDir, plan: Plan, course: Course, reference: Outcome) -> dict[str, Any]:
    """What is reported of a trial."""
    attempts = run.attempts()
    events = [attempt.events() for attempt in attempts]
    problems = _problems(run, course, [e for of_one in events for e in of_one], reference)
    restarts = restarts_of(events, course.struck)
    verdicts = [(attempt.verdict(), attempt.record()) for attempt in attempts]
    return {
        "number": plan.number,
        "keeps_memory": plan.keeps_memory,
        "planned": [str(strike) for strike in plan.strikes],
        "strikes": [_struck_json(struck) for struck in course.struck],
        "identical": not problems,
        "problems": problems,
        "lost_steps": sum(restart.lost_steps for restart in restarts),
        "restarts": [to_json(restart) for restart in restarts],
        "outcomes": [
            verdict.failure_class if verdict else (record.outcome if record else None)
            for verdict, record in verdicts
        ],
        "flow_starts": course.flow_starts,
        "stopped_flows_killed": course.flows_killed,
        "exit_code": course.exit_code,
        "wall_s": course.wall_s,
    }


def _problems(run: RunDir, course: Course, events: list[Event], reference: Outcome) -> list[str]:
    if course.exit_code is None:
        return [f"not done within {course.wall_s:.0f} s"]
    if course.exit_code != 0:
        return [f"the command ended with {course.exit_code}"]
    try:
        digest = digest_of_checkpoint(run, STEPS)
    except CheckpointError as error:
        return [str(error)]
    return differences(reference, events, digest)


def _struck_json(struck: Struck) -> dict[str, Any]:
    """One flat object; `step` is how far training had come."""
    fields = asdict(struck)
    strike = fields.pop("strike")
    moment = strike.pop("moment")
    planned_step = moment.pop("step")
    return {**strike, **moment, "planned_step": planned_step, **fields}


def leftovers(run: RunDir, *, is_done: bool) -> list[str]:
    """What of a run is still there that should not be; it is removed. A job's last process may need a
    moment to leave."""
    deadline = time.monotonic() + _LEFTOVER_WAIT_S
    while (processes := processes_of(run)) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(f"process {process.pid}: {' '.join(process.cmdline())}")
            process.kill()
    if give_memory_back(run) and is_done:
        found.append("snapshots in the node's memory")
    return found
