"""The node check's reasoning: which nodes to try together next, and what the answers mean. Pure.

After the roll call, in which each node works alone, nodes are paired (an odd one makes a group of three)
and do matrix products and all-gathers together. The nodes of a group that fails are suspects: each is
tried again with a node that has passed. When suspects outnumber those, the rest waits for a further
round; when nobody has passed, suspects are paired anew among themselves.

This is the two-round test of the Acme paper and of DLRover. What it adds: a node is faulty only when it
has failed with two different partners which are good, so that one bad link, or one partner whose fault
comes and goes, condemns nobody; and a suspect that passes is cleared at once only when the failure has
found its culprit, otherwise it has to pass twice. `Rules(confirm=False)` is the plain test.

The flow and the simulation call the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import median_low

from configs.nodecheck import NodeAnswer, NodeResult
from tasks.recover.nodecheck_pairs import pair_first, pair_with_trusted

Group = tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """What counts as faulty or slow."""

    confirm: bool = True
    """Two good partners must have seen a node fail; False: failing twice, once with a good one, is enough."""
    max_rounds: int = 5
    """After the roll call."""
    slow_ratio: float = 2.0
    """Times the median of all nodes, in two rounds."""
    slow_margin_s: float = 0.05
    """What a difference must be in any case: short times vary."""


@dataclass(frozen=True)
class Round:
    """One round: who was tried together, and what came back (nothing from a node that is silent)."""

    groups: Sequence[Group]
    answers: Mapping[str, NodeAnswer]


@dataclass(frozen=True)
class Findings:
    """The check's outcome."""

    nodes: list[NodeResult]
    links: list[tuple[str, str]]


def next_groups(nodes: Sequence[str], rounds: Sequence[Round], rules: Rules) -> list[Group]:
    """Groups of the next round; empty when the check is done."""
    if not rounds:
        return [(node,) for node in nodes]
    if len(rounds) > rules.max_rounds:
        return []
    return _Standings.after(nodes, rounds, rules).next_groups()


def judge(nodes: Sequence[str], rounds: Sequence[Round], rules: Rules) -> Findings:
    """What the rounds so far say about each node."""
    standings = _Standings.after(nodes, rounds, rules)
    return Findings(standings.results(), standings.links())


@dataclass
class _Node:
    """What is known of one node."""

    probes: int = 0
    own_failures: int = 0
    fails_alone: bool = False
    """Its last probe failed by its own fault."""
    passed: bool = False
    """Its last word in a group: it passed, or failed with somebody who is more likely the cause."""
    passes: int = 0
    """In groups, since its last failure."""
    failures: list[Group] = field(default_factory=list)
    """Groups that it failed in through no known fault of a single member."""
    partners: set[str] = field(default_factory=set)
    slow_rounds: int = 0
    slow_now: bool = False
    faulty: bool = False
    pending: bool = True
    """Needs another probe with a partner."""
    reason: str = ""
    matmul_s: float | None = None
    gather_s: float | None = None

    @property
    def slow(self) -> bool:
        return self.slow_rounds >= 2

    @property
    def trusted(self) -> bool:
        """Whether it can tell another node's fault from its own."""
        return self.passed and not (
            self.pending or self.faulty or self.fails_alone or self.slow_rounds
        )


class _Standings:
    """All nodes' standing, round by round."""

    def __init__(self, nodes: Sequence[str], rules: Rules) -> None:
        self._nodes = {name: _Node() for name in nodes}
        self._rules = rules
        self._matmul_s: float | None = None
        self._gather_s: float | None = None

    @classmethod
    def after(cls, nodes: Sequence[str], rounds: Sequence[Round], rules: Rules) -> _Standings:
        standings = cls(nodes, rules)
        for done in rounds:
            standings._apply(done)
        return standings

    # --- what a round tells -----------------------------------------------------------------------

    def _apply(self, done: Round) -> None:
        trusted = {name for name, node in self._nodes.items() if node.trusted}
        self._learn_medians(done)
        for group in done.groups:
            self._apply_group(group, done.answers, trusted)
        self._find_faulty()
        for node in self._nodes.values():
            node.pending = self._is_pending(node)

    def _learn_medians(self, done: Round) -> None:
        """The first round that has times says what is usual: all nodes take part in it."""
        passed = [answer for answer in done.answers.values() if answer.ok]
        if self._matmul_s is None:
            self._matmul_s = _median([answer.matmul_s for answer in passed])
        if self._gather_s is None:
            self._gather_s = _median([answer.gather_s for answer in passed])

    def _apply_group(
        self, group: Group, answers: Mapping[str, NodeAnswer], trusted: set[str]
    ) -> None:
        guilty = {n for n in group if (answer := answers.get(n)) is None or answer.own_fault}
        failed = any((answer := answers.get(n)) is None or not answer.ok for n in group)
        for name in group:
            node, answer = self._nodes[name], answers.get(name)
            others = [other for other in group if other != name]
            node.probes += 1
            node.partners |= set(others) if len(group) == 2 else set()
            node.fails_alone = name in guilty
            if name in guilty:
                node.own_failures += 1
                node.passed, node.passes = False, 0
                node.reason = answer.reason if answer else "it does not answer"
            elif not others:
                continue
            elif not failed:
                node.passed, node.passes = True, node.passes + 1
            elif not guilty:
                node.failures.append(group)
                node.reason = (
                    answer.reason if answer else ""
                ) or f"failed with {', '.join(others)}"
                if name not in trusted:
                    node.passed, node.passes = False, 0
        self._see_times(group, answers, trusted)

    def _see_times(
        self, group: Group, answers: Mapping[str, NodeAnswer], trusted: set[str]
    ) -> None:
        slow_alone, slow_together = set(), set()
        for name in group:
            node, answer = self._nodes[name], answers.get(name)
            if answer is None or not answer.ok:
                continue
            node.matmul_s = answer.matmul_s if answer.matmul_s is not None else node.matmul_s
            node.gather_s = answer.gather_s if answer.gather_s is not None else node.gather_s
            if self._is_slow(answer.matmul_s, self._matmul_s):
                slow_alone.add(name)
            if self._is_slow(answer.gather_s, self._gather_s):
                slow_together.add(name)
        slow = slow_alone or slow_together - trusted
        for name in group:
            node = self._nodes[name]
            node.slow_now = name in slow
            node.slow_rounds += name in slow
            answer = answers.get(name)
            if name not in slow and answer and answer.ok and len(group) > 1 and not node.slow:
                node.slow_rounds = 0

    def _is_slow(self, time_s: float | None, usual_s: float | None) -> bool:
        if time_s is None or usual_s is None:
            return False
        return time_s > max(usual_s * self._rules.slow_ratio, usual_s + self._rules.slow_margin_s)

    # --- what it all means ------------------------------------------------------------------------

    def _find_faulty(self) -> None:
        good = {n for n, node in self._nodes.items() if node.passed and not node.faulty}
        found = [
            name
            for name, node in self._nodes.items()
            if node.own_failures >= 2 or self._condemned(name, node, good, final=False)
        ]
        for name in found:
            self._nodes[name].faulty = True

    def _condemned(self, name: str, node: _Node, good: AbstractSet[str], *, final: bool) -> bool:
        """Whether the node has failed with enough partners that are good."""
        seen_by = [group for group in node.failures if set(group) - {name} <= good]
        if self._rules.confirm and not final:
            return len(set(seen_by)) >= 2
        return not node.passed and bool(seen_by) and len(node.failures) >= 2

    def _is_pending(self, node: _Node) -> bool:
        if node.faulty or node.fails_alone:
            return False
        if not node.passed:
            return True
        if node.slow_rounds == 1:
            return True
        wanted = 2 if self._rules.confirm else 1
        return node.passes < wanted and any(self._is_riddle(group) for group in node.failures)

    def _is_riddle(self, group: Group) -> bool:
        """Whether nobody in a group that failed is known, or likely, to be the cause."""
        return all(self._nodes[name].passed and not self._nodes[name].faulty for name in group)

    # --- what to do next --------------------------------------------------------------------------

    def next_groups(self) -> list[Group]:
        """Groups of the next round; empty when nothing is left to find out."""
        alone = [n for n, node in self._nodes.items() if node.fails_alone and not node.faulty]
        pending = [n for n, node in self._nodes.items() if node.pending]
        trusted = [n for n, node in self._nodes.items() if node.trusted]
        trusted.sort(key=lambda name: self._nodes[name].gather_s or 0.0)
        partners = {name: self._nodes[name].partners for name in pending}
        if not trusted and not any(self._nodes[name].failures for name in pending):
            groups = pair_first(pending)
        else:
            pending.sort(key=lambda name: self._nodes[name].probes)
            groups = pair_with_trusted(pending, trusted, partners)
        return [(name,) for name in alone] + groups

    # --- the outcome ------------------------------------------------------------------------------

    def results(self) -> list[NodeResult]:
        """What there is to say about each node."""
        good = {name for name, node in self._nodes.items() if node.passed and not node.faulty}
        return [self._result(name, node, good) for name, node in self._nodes.items()]

    def _result(self, name: str, node: _Node, good: set[str]) -> NodeResult:
        result = NodeResult(
            node=name,
            state="good",
            probes=node.probes,
            failures=len(node.failures) + node.own_failures,
            matmul_s=node.matmul_s,
            gather_s=node.gather_s,
        )
        alone = len(self._nodes) == 1 and node.probes > 0 and not node.own_failures
        if node.faulty or self._condemned(name, node, good, final=True):
            return result.model_copy(update={"state": "faulty", "reason": node.reason})
        if not node.passed and not alone:
            reason = node.reason or "it was not tried with another node"
            return result.model_copy(update={"state": "undecided", "reason": reason})
        if node.slow:
            return result.model_copy(update={"state": "slow", "reason": self._why_slow(node)})
        return result

    def _why_slow(self, node: _Node) -> str:
        parts = []
        for what, time_s, usual_s in (
            ("matrix product", node.matmul_s, self._matmul_s),
            ("all-gather", node.gather_s, self._gather_s),
        ):
            if time_s is not None and usual_s and self._is_slow(time_s, usual_s):
                parts.append(f"{what} {time_s / usual_s:.1f} times the median")
        return ", ".join(parts)

    def links(self) -> list[tuple[str, str]]:
        """Pairs that failed though both are good."""
        pairs = {
            (min(group), max(group))
            for node in self._nodes.values()
            for group in node.failures
            if len(group) == 2 and self._is_riddle(group)
        }
        return sorted(pairs)


def _median(times_s: Iterable[float | None]) -> float | None:
    """Of two the smaller: one slow node of two is slow."""
    known = [time_s for time_s in times_s if time_s is not None]
    return median_low(known) if known else None
