"""Where to restart: by what the logs say, and by what a node check has found. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from configs.nodecheck import NodeCheckReport
from configs.records import ActionKind, Verdict

_SHOWN = 5


@dataclass(frozen=True)
class Place:
    """Where the next attempt runs."""

    kind: ActionKind
    exclude: tuple[str, ...] = ()
    """From now on, beside those that were excluded before."""
    said: str = ""
    """For the action's reason."""


def place_by_logs(
    verdict: Verdict, gone: Collection[str], pool: Collection[str], wanted: int
) -> Place:
    """Without a check. `gone`: excluded before; `pool`: nodes that can run jobs, empty: not known."""
    if verdict.failure_class == "NoFailure":
        return Place("restart_same_nodes", said=", though its logs show no failure")
    if verdict.action != "restart_exclude_node":
        return Place(verdict.action)
    node = verdict.faulty_node
    if node is None:
        return Place("restart_same_nodes", said=", on the same nodes: no faulty node is known")
    if len(set(pool) - set(gone) - {node}) < wanted:
        said = f", on {node} again: no other node is available"
        return Place("restart_same_nodes", said=said)
    return Place("restart_exclude_node", (node,), f", without {node}")


def place_by_check(verdict: Verdict, report: NodeCheckReport, *, exclude_slow: bool) -> Place:
    """After a check: without what it has found. Too few nodes are dealt with before the next attempt.

    What the logs say of a node counts where the check could not decide, or did not end.
    """
    bad = report.named("faulty", "down", *(("slow",) if exclude_slow else ()))
    named = verdict.faulty_node
    if named and named not in bad and (not report.complete or named in report.named("undecided")):
        bad.append(named)
    if not bad:
        if not report.complete or report.named("undecided"):
            said = ", on the same nodes: the node check did not come to an end"
            return Place("restart_same_nodes", said=said)
        count = len(report.nodes)
        return Place("restart_same_nodes", said=f", after a check of {count} nodes found no fault")
    return Place("restart_exclude_node", tuple(bad), f", without {listed(bad)} (node check)")


def listed(nodes: Sequence[str]) -> str:
    """A list of nodes for a sentence."""
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(nodes[:_SHOWN]) + more
