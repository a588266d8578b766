"""Real node faults: reads a trace in the format of InfiniteHBD and scales it to a cluster's size.

The format (github.com/stepfun-ai/InfiniteHBD-Trace): a JSON list of events with `node_id`,
`event_time` in days, `event_type` fault_start or fault_end, and `fault_type`. Nodes that never failed
are not in it: how many there were in all has to be said.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import InputError

DAY_S = 86_400.0
INFINITEHBD_NODES = 400
"""Eight-GPU nodes that the published trace was recorded on."""
_MOST_NODES = 1_000_000
_MOST_DAYS = 100_000.0


@dataclass(frozen=True, order=True)
class Outage:
    """A fault of a node, and when the node was back."""

    start_s: float
    end_s: float
    node: int


@dataclass(frozen=True)
class FaultTrace:
    """All outages of `nodes` nodes in a span of time that begins at 0."""

    outages: tuple[Outage, ...]
    nodes: int
    span_s: float

    @property
    def node_mtbf_s(self) -> float:
        """Mean time between the faults of one node."""
        return self.nodes * self.span_s / len(self.outages)


@functools.lru_cache(maxsize=1)
def read_fault_trace(path: Path, nodes: int = INFINITEHBD_NODES) -> FaultTrace:
    """Read a trace file that was recorded on so many nodes.

    The last one is kept: a plan may take the MTBF from the trace that it is checked against later.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))
        outages, names = _pair(events)
    except OSError as error:
        raise InputError(f"the fault trace {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError(
            f"{path} is no fault trace: it must be a JSON list of events with node_id, event_time in"
            f" days, and event_type fault_start or fault_end ({type(error).__name__}: {error})"
        ) from error
    if not outages:
        raise InputError(f"the fault trace {path} holds no fault")
    if nodes < names:
        raise InputError(f"{names} nodes failed in {path}: it cannot be a trace of {nodes} nodes")
    if nodes > _MOST_NODES:
        raise InputError(f"--trace-nodes must be at most {_MOST_NODES:,}")
    span_s = max(outage.end_s for outage in outages)
    if not span_s:
        raise InputError(f"all events of the fault trace {path} are at time 0: it has no length")
    return FaultTrace(tuple(sorted(outages)), nodes, span_s)


def draw_cluster(trace: FaultTrace, nodes: int, random: np.random.Generator) -> list[Outage]:
    """Outages of a cluster of another size over the trace's span, in the order of time.

    Up to the trace's size: that many of its nodes, drawn without replacement. Beyond it: several
    such groups side by side. Within a group all times stay as they were to each other, so that nodes
    which failed together still do; each group's time is turned around the span by a random offset, so
    that two groups do not fail at the same moments.
    """
    by_node: dict[int, list[Outage]] = {}
    for outage in trace.outages:
        by_node.setdefault(outage.node, []).append(outage)
    drawn = []
    for first in range(0, nodes, trace.nodes):
        offset_s = float(random.uniform(0, trace.span_s))
        chosen = random.choice(trace.nodes, size=min(trace.nodes, nodes - first), replace=False)
        for number, node in enumerate(chosen.tolist()):
            drawn += [
                _turned(outage, first + number, offset_s, trace.span_s)
                for outage in by_node.get(node, ())
            ]
    return sorted(drawn)


def _turned(outage: Outage, node: int, offset_s: float, span_s: float) -> Outage:
    start_s = (outage.start_s + offset_s) % span_s
    return Outage(start_s, start_s + outage.end_s - outage.start_s, node)


def _pair(events: list[dict[str, Any]]) -> tuple[list[Outage], int]:
    """Outages, each start with the next end of its node and fault type; and how many nodes failed.

    An outage that the trace does not see the end of lasts until the trace ends.
    """
    numbers: dict[str, int] = {}
    begun: dict[tuple[int, str], list[float]] = {}
    outages = []
    last_s = 0.0
    for event in sorted(events, key=_time_s):
        node = numbers.setdefault(str(event["node_id"]), len(numbers))
        last_s = _time_s(event)
        waiting = begun.setdefault((node, json.dumps(event.get("fault_type"))), [])
        if event["event_type"] == "fault_start":
            waiting.append(last_s)
        elif event["event_type"] != "fault_end":
            raise ValueError(f"event_type {event['event_type']!r}")
        elif waiting:
            outages.append(Outage(waiting.pop(0), last_s, node))
    outages += [Outage(s, last_s, node) for (node, _), left in begun.items() for s in left]
    return outages, len(numbers)


def _time_s(event: dict[str, Any]) -> float:
    days = float(event["event_time"])
    if not 0 <= days <= _MOST_DAYS:  # nan too
        raise ValueError(f"event_time {days:g}")
    return days * DAY_S
