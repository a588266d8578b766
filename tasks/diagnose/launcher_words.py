"""What a launcher knows for certain of a job that has left nothing to read: it begins its reason with a
word for that."""

from __future__ import annotations

from configs.events import StartEvent
from configs.records import AttemptRecord, Verdict
from configs.rundir import AttemptDir
from tasks.diagnose.verdicts import make_verdict

_LESS = "Look after the jobs that launcher.slurm.dependency names, or ask for less."
_SHARED = (
    "Put the run directory on storage that all nodes share and the job's user can write to: "
    "`overland doctor --config CONFIG` checks that."
)
_WORDS = {
    "FAILED DependencyNeverSatisfied": ("ArgumentError", _LESS),
    "FAILED NeverStarts": ("ArgumentError", _LESS),
    "FAILED NothingSeen": ("FileNotFoundError", _SHARED),
}


def verdict_on_launchers_word(record: AttemptRecord) -> Verdict | None:
    """The verdict by the launcher's own word, which its sentence follows; None without one."""
    word, _, sentence = record.reason.partition(": ")
    if word not in _WORDS:
        return None
    failure_class, mitigation = _WORDS[word]
    verdict = make_verdict(
        failure_class,
        method="launcher",
        confidence=0.95,
        evidence=[f"launcher: {record.reason}"],
        mitigation=mitigation,
    )
    return verdict.model_copy(update={"root_cause_text": sentence})


def with_another_port(verdict: Verdict, attempt: AttemptDir) -> Verdict:
    """Of a job of our own: its launcher chooses a port for each attempt, so that the next one has another.

    Ranks that have met already want a port of the user's.
    """
    if verdict.method != "network_port_taken" or _have_met(attempt):
        return verdict
    return verdict.model_copy(
        update={
            "action": "restart_same_nodes",
            "mitigation": "Another process listens on the port where the ranks meet; each attempt takes "
            "another one.",
        }
    )


def _have_met(attempt: AttemptDir) -> bool:
    return any(isinstance(event, StartEvent) for event in attempt.events())
