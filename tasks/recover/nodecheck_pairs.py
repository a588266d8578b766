"""Who is tried with whom in a node check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

Group = tuple[str, ...]


def pair_first(nodes: Sequence[str]) -> list[Group]:
    """All nodes in twos, in their order; an odd last one makes the last group three. One alone has
    nobody to be tried with."""
    if len(nodes) < 2:
        return []
    groups: list[Group] = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        groups[-1] += (nodes[-1],)
    return groups


def pair_with_trusted(
    pending: Sequence[str], trusted: Sequence[str], partners: Mapping[str, AbstractSet[str]]
) -> list[Group]:
    """Each node with one that is trusted and that it was not tried with before, if there is one.

    What is left over waits for the next round. Without anybody to trust, nodes are paired among
    themselves, as they were not before; when all such pairs were tried, there is nothing more to learn.
    """
    if not trusted:
        return _pair_anew(pending, partners)
    free = dict.fromkeys(trusted)
    groups: list[Group] = []
    for name in pending:
        if not free:
            break
        helper = next((other for other in free if other not in partners[name]), None)
        if helper is None:
            continue
        del free[helper]
        groups.append((name, helper))
    return groups or _pair_anew(pending, partners)


def _pair_anew(pending: Sequence[str], partners: Mapping[str, AbstractSet[str]]) -> list[Group]:
    free = dict.fromkeys(pending)
    groups: list[Group] = []
    for name in pending:
        if name not in free:
            continue
        del free[name]
        other = next((other for other in free if other not in partners[name]), None)
        if other is not None:
            del free[other]
            groups.append((name, other))
    return groups
