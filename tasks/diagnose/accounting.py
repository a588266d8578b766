"""Slurm's accounting, where a log ends with rows of sacct: how the job ended, by the row that is its own.

Such tables also hold other jobs. A row is the job's own when its id or one of its nodes is what the rest of the
log names, or when there is only one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice

from tasks.diagnose.findings import Finding
from tasks.diagnose.host_names import MAX_HOSTS
from tasks.diagnose.logs import LogLine
from tasks.diagnose.node_lists import expand_hosts
from tasks.diagnose.patterns import compile_pattern

_CLASS_OF_STATE = {
    "TIMEOUT": "SlurmTimeLimit",
    "DEADLINE": "SlurmTimeLimit",
    "PREEMPTED": "SlurmPreempted",
    "NODE_FAIL": "NodeFailure",
    "OUT_OF_MEMORY": "CgroupOOM",
    "CANCELLED": "SlurmCancelled",
}
_STATE = r"(?P<state>TIMEOUT|DEADLINE|PREEMPTED|NODE_FAIL|OUT_OF_MEMORY|CANCELLED|FAILED|COMPLETED|RUNNING)"
_ROW = compile_pattern(
    r"^\W*(?:\[[^\]]{0,40}\] *)?(?:sacct\b[: ]*)?(?:"
    rf"(?P<job>\d{{1,12}})(?P<step>[._][\w.+-]{{1,20}})?(?: *\| *|,| +)(?:.{{0,200}}?[| ,=\"'])??{_STATE}\b(?P<rest>.*)|"
    rf".{{0,60}}-j ?(?P<asked>\d{{1,12}})\b.{{0,160}}?[ |:=]{_STATE.replace('state', 'answer')}\b)"
)
_OWN_ID = compile_pattern(
    r"(?:\*\*\* (?:JOB|STEP) |StepId=|SLURM_JOB_?ID[=: ]+|\bbatch job |/job0*|(?i:^\W*(?:slurm )?job[ :=]+))(\d{1,12})\b"
)
_OF_IDS = ("ob", "JOB", "tepId", "STEP")
_OWN_HOST = "srun: error: "
_ABORTS = ("srun: Job step aborted", "srun: forcing job termination", "srun: Force Terminated")
_STATES = (*_CLASS_OF_STATE, "FAILED", "COMPLETED", "RUNNING")
_MAX_ROWS = 256
_MAX_IDS = 64
_MAX_NODES = 1024
"""Of a row."""


@dataclass(frozen=True)
class Row:
    """A job's row; those of its steps are left out."""

    job: str
    state: str
    nodes: frozenset[str]
    line: LogLine
    order: int


@dataclass
class Accounting:
    """Rows, and what tells which of them is the job's own."""

    rows: list[Row] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    aborted: dict[str, int] = field(default_factory=dict)
    """By file: when srun first said that it ends the step."""

    def merge(self, other: Accounting, lines_before: int) -> None:
        """Add what other files hold, whose lines come so many later."""
        more = other.rows[: _MAX_ROWS - len(self.rows)]
        self.rows += [replace(row, order=row.order + lines_before) for row in more]
        self.ids |= other.ids
        self.hosts |= other.hosts
        for file, order in other.aborted.items():
            self.aborted.setdefault(file, order + lines_before)

    def feed(self, line: LogLine, order: int) -> None:
        """Take note of a line that is no report of a step."""
        body = line.body
        if body.startswith(_OWN_HOST) and len(self.hosts) < MAX_HOSTS:
            self.hosts.update(_nodes(body[len(_OWN_HOST) :].partition(":")[0]))
        if says_step_aborted(body):
            self.aborted.setdefault(line.file, order)
        if may_be_row(body):
            self._note_row(line, order)
        elif (found := _own_id_in(body)) is not None and len(self.ids) < _MAX_IDS:
            self.ids.add(found)

    def ending(self) -> Finding | None:
        """How the job's own row says that it ended; None when no row is known to be its own, or tells nothing."""
        row = self._own()
        failure_class = _CLASS_OF_STATE.get(row.state) if row is not None else None
        if row is None or failure_class is None:
            return None
        return Finding(failure_class, "decisive", "accounting", row.line, row.order)

    def _own(self) -> Row | None:
        jobs = {row.job: row for row in self.rows[::-1]}
        by_id = [row for job, row in jobs.items() if job in self.ids]
        by_host = [row for row in jobs.values() if row.nodes & self.hosts]
        if len(by_id) == 1 or by_host:
            return by_id[0] if len(by_id) == 1 else max(by_host, key=lambda row: int(row.job))
        return next(iter(jobs.values())) if len(jobs) == 1 else None

    def _note_row(self, line: LogLine, order: int) -> None:
        match = _ROW.search(line.body)
        if match is None or len(self.rows) >= _MAX_ROWS:
            return
        if match["asked"] is not None:
            self.ids.add(match["asked"])
        elif match["step"] is not None and match["step"].startswith("."):
            return
        job, state = match["job"] or match["asked"], match["state"] or match["answer"]
        cells = (match["rest"] or "").replace("|", " ").split()
        nodes = islice((node for cell in cells for node in _nodes(cell)), _MAX_NODES)
        self.rows.append(Row(job, state, frozenset(nodes), line, order))


def may_be_row(body: str) -> bool:
    """Whether a line may be a row that says how a job ended."""
    return any(state in body for state in _STATES) and _ROW.search(body) is not None


def says_step_aborted(body: str) -> bool:
    """Whether srun says that it ends the step, for whatever reason."""
    return body.startswith(_ABORTS)


def _own_id_in(body: str) -> str | None:
    """The job's id, of a line that is about this job."""
    match = _OWN_ID.search(body) if any(word in body for word in _OF_IDS) else None
    return None if match is None else match[1]


def _nodes(cell: str) -> list[str]:
    return expand_hosts(cell, _MAX_NODES) if cell[:1].isalpha() else []
