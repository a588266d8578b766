"""Verdicts on attempts that ended themselves over an anomaly: their events say it, no log need.

The error that ends such a job stands in all logs too, as a traceback like any other.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from configs.events import AnomalyEvent, event_adapter
from configs.records import Verdict
from configs.rundir import AttemptDir
from tasks.diagnose.logs import LogLine
from tasks.diagnose.verdicts import make_verdict

_CONFIDENCE = 0.95
_CORRUPTED = (
    "The node computes or keeps wrong numbers without an error: test its memory and its GPU before it "
    "is used again. The run goes on from the last checkpoint at which all replicas were equal."
)


def verdict_on_anomaly(attempt: AttemptDir) -> Verdict | None:
    """The verdict by the anomaly that ended the attempt; None when none did."""
    for number, event in _anomalies(attempt):
        if not event.fatal:
            continue
        file = attempt.events_path.name
        line = LogLine(file, number, event.rank, event.message, event.message)
        if event.kind == "replica_mismatch":
            return make_verdict(
                "NodeFailure",
                method="monitor",
                confidence=_CONFIDENCE,
                root=line,
                rank=event.rank,
                node=event.node,
                action="restart_exclude_node",
                mitigation=_CORRUPTED,
            )
        return make_verdict("LossSpike", method="monitor", confidence=_CONFIDENCE, root=line)
    return None


def _anomalies(attempt: AttemptDir) -> Iterator[tuple[int, AnomalyEvent]]:
    """The attempt's anomalies with their line numbers."""
    if not attempt.events_path.exists():
        return
    with open(attempt.events_path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if b'"anomaly"' not in line:
                continue
            try:
                event = event_adapter.validate_json(line)
            except ValidationError:  # torn by a crash
                continue
            if isinstance(event, AnomalyEvent):
                yield number, event
