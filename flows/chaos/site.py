"""Where the trials of `overland chaos` run, and how what is to be struck is found there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

from configs.rundir import RunDir
from flows.chaos.schedule import Plan, Strike
from infra.launch.record import JobFiles, read_record
from infra.launch.torchrun import AGENT_MODULE

_JOB_MODULE = "tasks.train.job"
_WRITER_MODULE = "tasks.train.writer"


class Aim(Protocol):
    """Something that is there to be struck."""

    @property
    def pid(self) -> int:
        """Of the process; 0 where it is none."""

    def is_there(self) -> bool:
        """Whether it still is."""

    def strike(self) -> bool:
        """Strike it; returns False when it was gone."""


class Site(Protocol):
    """A place where trials run."""

    name: str
    trial_limit_s: float

    def config(self) -> dict[str, Any]:
        """What of the trials' config is different here."""

    def plans(self, seed: int, trials: int) -> list[Plan]:
        """The plans of all trials, by what can be struck here."""

    def aim(self, run: RunDir, strike: Strike, flow_pid: int) -> Aim | None:
        """What the strike is for, of the newest attempt's job; None while there is none."""

    def tend(self) -> None:
        """Bring back what has been away for as long as its strike wanted."""

    def put_right(self, run: RunDir) -> dict[str, Any]:
        """After a trial: mend what was struck. Returns what more is to be reported of it."""


@dataclass(frozen=True)
class ProcessAim:
    """A process, and the signal that it gets."""

    process: psutil.Process
    number: signal.Signals

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def is_there(self) -> bool:
        return bool(self.process.is_running())

    def strike(self) -> bool:
        try:
            self.process.send_signal(self.number)
        except psutil.NoSuchProcess:
            return False
        return True


def aim_at(processes: Iterable[psutil.Process], strike: Strike, flow_pid: int) -> ProcessAim | None:
    """The process to strike: the flow, or one of these; None while there is none."""
    number = signal.Signals[strike.signal]
    with suppress(psutil.Error):
        if strike.target == "flow":
            return ProcessAim(psutil.Process(flow_pid), number)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                if _is_target(process, strike):
                    return ProcessAim(process, number)
    return None


def _is_target(process: psutil.Process, strike: Strike) -> bool:
    command = process.cmdline()
    if strike.target == "agent":
        return AGENT_MODULE in command
    parent = process.parent()
    if parent is None:
        return False
    if strike.target == "writer":
        return _WRITER_MODULE in command and _rank_of(parent) == strike.rank
    is_rank = _JOB_MODULE in command and AGENT_MODULE in parent.cmdline()
    return is_rank and AGENT_MODULE not in command and _rank_of(process) == strike.rank


def _rank_of(process: psutil.Process) -> int | None:
    rank = process.environ().get("RANK", "")
    return int(rank) if rank.isdigit() else None


def job_processes(run: RunDir) -> list[psutil.Process]:
    """The processes below the supervisor of the newest attempt's local job, the nearest first."""
    attempts = run.attempts()
    record = read_record(JobFiles(attempts[-1].job_dir)) if attempts else None
    if record is None or record.state.final:
        return []
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(record.pid).children(recursive=True)
    return []


def processes_of(run: RunDir, *, below: str = "") -> list[psutil.Process]:
    """All processes that have to do with the run: its flows, and its jobs with all that is below; or
    those of one of its folders."""
    mark, found = str(run.path / below), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            job_dir = process.environ().get("OVERLAND_JOB_DIR", "")
            if f"{job_dir}/".startswith(f"{mark}/") or any(
                mark in part for part in process.cmdline()
            ):
                found.append(process)
    return found
