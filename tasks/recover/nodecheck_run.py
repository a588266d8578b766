"""A whole node check: its jobs, its course, and the report. What a launcher does is given to it.

Started again after any interruption, it goes on with the job that is there. A job that is lost with one
of its nodes is followed by another one without that node.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from configs.errors import LaunchError
from configs.nodecheck import REPORT_NAME, NodeCheckReport, NodeResult
from configs.nodecheck_schema import NodeCheckConfig
from configs.rundir import read_record, write_record
from tasks.recover.nodecheck import Findings, Rules
from tasks.recover.nodecheck_course import Course
from tasks.recover.nodecheck_files import CheckFiles

logger = logging.getLogger(__name__)

MAX_JOBS = 3
_POLL_INTERVAL_S = 0.5
_DOWN = "it was lost, and nothing can be run on it"
_NOT_NOW = (
    "nothing can be run on it now, but it has not failed: drained, in maintenance, restarting"
)
_REASON_CHARACTERS = 200


@dataclass(frozen=True)
class JobView:
    """How a check's job stands."""

    running: bool
    ended: bool = False
    nodes: tuple[str, ...] = ()
    words: str = ""
    """The launcher's own, about the wait or the end."""


class CheckJobs(Protocol):
    """What a check needs of a launcher."""

    @property
    def can_drain(self) -> bool:
        """Whether there are other jobs that a node can be kept from."""

    def usable(self) -> list[str]:
        """Nodes that jobs can run on."""

    def lost(self) -> list[str]:
        """Nodes that have failed, not those that are drained or in maintenance."""

    def start(self, files: CheckFiles, nodes: Sequence[str]) -> None:
        """Submit the job over these nodes (and free ones beside them), or find it."""

    def look(self, files: CheckFiles) -> JobView:
        """How it stands."""

    def end(self, files: CheckFiles) -> None:
        """End it: nothing that it does is wanted any more."""

    def drain(self, node: str, reason: str) -> None:
        """Take a node out of service."""


def read_report(folder: Path) -> NodeCheckReport | None:
    """The report of a check that has ended."""
    return read_record(folder / REPORT_NAME, NodeCheckReport)


def run_check(
    jobs: CheckJobs, folder: Path, nodes: Sequence[str], settings: NodeCheckConfig
) -> NodeCheckReport:
    """Check these nodes, take faulty ones out of service, and report. A report that is there is kept."""
    if (report := read_report(folder)) is not None:
        return report
    check = _Check(jobs, folder, nodes, settings, deadline_s=time.monotonic() + settings.timeout_s)
    started_at = time.time()
    check.run()
    report = NodeCheckReport(
        complete=not check.problem,
        reason=check.problem,
        nodes=check.results(),
        links=check.findings.links,
        rounds=check.rounds,
        jobs=check.jobs_used,
        started_at=started_at,
        ended_at=time.time(),
    )
    report = _drain(jobs, report) if settings.drain and jobs.can_drain else report
    write_record(folder / REPORT_NAME, report)
    return report


@dataclass
class _Check:
    jobs: CheckJobs
    folder: Path
    nodes: Sequence[str]
    settings: NodeCheckConfig
    deadline_s: float
    problem: str = ""
    """Why it is not complete."""
    findings: Findings = field(default_factory=lambda: Findings([], []))
    down: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    """Not lost, and not usable now."""
    rounds: int = 0
    jobs_used: int = 0

    def run(self) -> None:
        """One job after another, until one is not lost."""
        for number in range(1, MAX_JOBS + 1):
            usable, lost_nodes = set(self.jobs.usable()), set(self.jobs.lost())
            present = [node for node in self.nodes if node in usable]
            absent = [node for node in self.nodes if node not in usable]
            self.down = [node for node in absent if node in lost_nodes]
            self.away = [node for node in absent if node not in lost_nodes]
            if not present:
                self.problem = "" if self.nodes else "no node was given"
                return
            self.jobs_used = number
            files = CheckFiles(self.folder / f"try_{number}")
            lost = self._run_job(files, present)
            if not lost:
                return
            self.problem = f"the check's job ended early: {lost}"

    def _run_job(self, files: CheckFiles, present: Sequence[str]) -> str:
        """Why the job was lost; empty when it was not."""
        try:
            self.jobs.start(files, present)
            course = self._wait_for_start(files)
            if isinstance(course, str):
                return course
            if course is not None:
                return self._follow(files, course)
        except LaunchError as error:
            # What the launcher does not know, the nodes may still do: nobody follows them any more.
            self.problem = str(error)
            self._end(files)
        return ""

    def _end(self, files: CheckFiles) -> None:
        """End the job; one that cannot be ended leaves by itself when no order comes."""
        try:
            self.jobs.end(files)
        except LaunchError as error:
            logger.warning("the check's job in %s is not ended: %s", files.job_dir, error)
            self.problem = self.problem or f"its job could not be ended: {error}"

    def _wait_for_start(self, files: CheckFiles) -> Course | str | None:
        """The course once the job runs; why it ended before; None when the time was over."""
        while not (view := self.jobs.look(files)).running and not files.done.exists():
            if view.ended:
                return view.words or "it ended before it had begun"
            if time.monotonic() > self.deadline_s:
                self.problem = (
                    f"its job has not started within {self.settings.timeout_s:g} s: {view.words}"
                )
                self._end(files)
                return None
            time.sleep(_POLL_INTERVAL_S)
        settings = self.settings
        rules = Rules(max_rounds=settings.max_rounds, slow_ratio=settings.slow_ratio)
        return Course(files, view.nodes, rules, settings.probe_size, settings.start_timeout_s)

    def _follow(self, files: CheckFiles, course: Course) -> str:
        """Round after round to the end; returns why the job was lost on the way."""
        lost = self.problem = ""
        try:
            while not course.advance():
                view = self.jobs.look(files)
                if view.ended and not course.advance():
                    lost = view.words or "it has left"
                    break
                if time.monotonic() > self.deadline_s:
                    self.problem = f"it took longer than {self.settings.timeout_s:g} s"
                    break
                time.sleep(_POLL_INTERVAL_S)
        except LaunchError as error:
            self.problem = str(error)
        self.findings, self.rounds = course.findings(), course.rounds
        if not lost:
            files.done.touch()
        self._end(files)
        return lost

    def results(self) -> list[NodeResult]:
        """Of all nodes, those that take part by chance included."""
        known = {result.node: result for result in self.findings.nodes}
        for node in self.down:
            known[node] = NodeResult(node=node, state="down", reason=_DOWN)
        for node in self.away:
            known[node] = NodeResult(node=node, state="undecided", reason=_NOT_NOW)
        for node in self.nodes:
            known.setdefault(
                node, NodeResult(node=node, state="undecided", reason="it was not tried")
            )
        return [known[node] for node in sorted(known)]


def _drain(jobs: CheckJobs, report: NodeCheckReport) -> NodeCheckReport:
    drained, errors = [], []
    for result in report.nodes:
        if result.state not in ("faulty", "down"):
            continue
        try:
            jobs.drain(result.node, f"overland nodecheck: {result.reason}"[:_REASON_CHARACTERS])
            drained.append(result.node)
        except LaunchError as error:
            errors.append(f"{result.node}: {error}")
    return report.model_copy(update={"drained": drained, "drain_errors": errors})


def end_quietly(jobs: CheckJobs, folder: Path) -> None:
    """End what jobs of a check may still run, for somebody who was interrupted."""
    for number in range(1, MAX_JOBS + 1):
        with suppress(LaunchError):
            jobs.end(CheckFiles(folder / f"try_{number}"))
