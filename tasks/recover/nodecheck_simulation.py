"""`overland simulate nodecheck`: what a node check would find on a cluster of any size, and how long it takes.

A stage's entry like task.py, but without Prefect: nothing is run. Only the nodes' answers are made up;
who is tried with whom, and what the answers mean, is decided by the same functions as in a real check.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from configs.errors import InputError
from configs.nodecheck import FaultMix, NodeAnswer, SimulatedCheck
from tasks.recover.nodecheck import Findings, Group, Round, Rules, judge, next_groups

PAPER = Rules(confirm=False, max_rounds=2)
"""The two rounds of the Acme paper and of DLRover."""
STANDARD_MIXES: tuple[FaultMix, ...] = (
    FaultMix(name="none"),
    FaultMix(name="0.1 % dead, 0.1 % broken", dead=0.001, broken=0.001),
    FaultMix(name="1 % broken", broken=0.01),
    FaultMix(name="10 % broken", broken=0.1),
    FaultMix(name="40 % broken", broken=0.4),
    FaultMix(name="1 % fail in 10 % of trials", intermittent=0.01, intermittent_rate=0.1),
    FaultMix(name="1 % fail in 30 % of trials", intermittent=0.01, intermittent_rate=0.3),
    FaultMix(name="1 % fail in 70 % of trials", intermittent=0.01, intermittent_rate=0.7),
    FaultMix(name="1 % slow to compute", slow=0.01, slow_is_compute=True),
    FaultMix(name="1 % slow to exchange", slow=0.01),
    FaultMix(name="0.1 % of links", link=0.001),
    FaultMix(name="10 % broken, 1 % of links", broken=0.1, link=0.01),
    FaultMix(
        name="10 % dead, 5 % broken, 5 % fail in 30 %", dead=0.1, broken=0.05, intermittent=0.05
    ),
    FaultMix(
        name="all kinds", dead=0.002, broken=0.005, intermittent=0.002, slow=0.002, link=0.001
    ),
)
_NOISE = 0.03
"""Relative standard deviation of the times of healthy nodes."""


@dataclass(frozen=True)
class Timing:
    """How long the parts of a check take, in seconds."""

    start_s: float = 60.0
    """From submission until the nodes answer the roll call: scheduling, imports."""
    round_s: float = 15.0
    """Processes start, meet, and make their communicators."""
    trial_s: float = 2.0
    timeout_s: float = 45.0
    """A silent node, or a hanging group, holds up its round for this long."""
    hang_share: float = 0.5
    """Failures that end in a timeout rather than an error."""


@dataclass
class _Cluster:
    """Nodes with their faults, and the luck of each probe."""

    nodes: list[str]
    mix: FaultMix
    random: np.random.Generator
    kinds: dict[str, str] = field(default_factory=dict)
    """dead, broken, intermittent or slow; other nodes are healthy."""
    links: dict[frozenset[str], bool] = field(default_factory=dict)
    """Pairs tried so far, and whether the way between them is broken."""

    @classmethod
    def draw(cls, count: int, mix: FaultMix, seed: int) -> _Cluster:
        random = np.random.default_rng(seed)
        cluster = cls([f"node{number:05d}" for number in range(count)], mix, random)
        order = [cluster.nodes[i] for i in random.permutation(count).tolist()]
        for kind in ("dead", "broken", "intermittent", "slow"):
            wanted = getattr(mix, kind) * count
            # A share that makes no whole number of nodes is met on average.
            number = int(wanted) + int(random.random() < wanted - int(wanted))
            for _ in range(min(number, len(order))):
                cluster.kinds[order.pop()] = kind
        return cluster

    def probe(self, group: Group, trials: int) -> dict[str, NodeAnswer]:
        """What the members answer."""
        silent = {name for name in group if self.kinds.get(name) == "dead"}
        together = len(group) > 1
        failed = bool(silent) or (together and self._fails(group, trials))
        slow = any(self.kinds.get(name) == "slow" for name in group)
        gather_s = self._time(self.mix.slow_factor if slow and not self.mix.slow_is_compute else 1)
        return {
            name: NodeAnswer(
                ok=not failed or not together,
                matmul_s=self._time(self._compute_factor(name)),
                gather_s=gather_s if together and not failed else None,
            )
            for name in group
            if name not in silent
        }

    def _fails(self, group: Group, trials: int) -> bool:
        for name in group:
            kind = self.kinds.get(name)
            if kind == "broken":
                return True
            if kind == "intermittent" and self.random.random() < 1 - (
                1 - self.mix.intermittent_rate
            ) ** max(trials, 1):
                return True
        return any(self._link_is_broken(frozenset((a, b))) for a in group for b in group if a < b)

    def _link_is_broken(self, pair: frozenset[str]) -> bool:
        if pair not in self.links:
            self.links[pair] = bool(self.random.random() < self.mix.link)
        return self.links[pair]

    def _compute_factor(self, name: str) -> float:
        slow = self.kinds.get(name) == "slow" and self.mix.slow_is_compute
        return self.mix.slow_factor if slow else 1.0

    def _time(self, factor: float) -> float:
        return factor * max(0.1, float(self.random.normal(1.0, _NOISE)))


def simulate_checks(
    nodes: int,
    mixes: Sequence[FaultMix],
    *,
    trials: int = 3,
    seeds: int = 3,
    first_seed: int = 0,
    timing: Timing | None = None,
) -> list[SimulatedCheck]:
    """Both tests, the paper's and ours, over each mix of faults."""
    if nodes < 2:
        raise InputError(f"--nodes must be at least 2; it is {nodes}")
    found = []
    for mix in mixes:
        if mix.dead + mix.broken + mix.intermittent + mix.slow > 1:
            raise InputError(f"the shares of faulty nodes in {mix.name!r} add up to more than 1")
        for name, rules, tried in (("paper", PAPER, 1), ("overland", Rules(), trials)):
            runs = [
                _simulate(nodes, mix, rules, tried, first_seed + n, timing or Timing())
                for n in range(seeds)
            ]
            found.append(_summarize(name, mix, nodes, tried, runs))
    return found


@dataclass(frozen=True)
class _Run:
    cluster: _Cluster
    findings: Findings
    rounds: int
    time_s: float
    planning_s: float


def _simulate(
    nodes: int, mix: FaultMix, rules: Rules, trials: int, seed: int, timing: Timing
) -> _Run:
    cluster = _Cluster.draw(nodes, mix, seed)
    rounds: list[Round] = []
    time_s = planning_s = 0.0
    while True:
        begun = time.perf_counter()
        groups = next_groups(cluster.nodes, rounds, rules)
        planning_s += time.perf_counter() - begun
        if not groups:
            break
        answers: dict[str, NodeAnswer] = {}
        for group in groups:
            answers |= cluster.probe(group, trials)
        time_s += _round_time_s(groups, answers, trials, timing, cluster, first=not rounds)
        rounds.append(Round(groups, answers))
    begun = time.perf_counter()
    findings = judge(cluster.nodes, rounds, rules)
    planning_s += time.perf_counter() - begun
    return _Run(cluster, findings, len(rounds) - 1, time_s, planning_s)


def _round_time_s(
    groups: Sequence[Group],
    answers: dict[str, NodeAnswer],
    trials: int,
    timing: Timing,
    cluster: _Cluster,
    *,
    first: bool,
) -> float:
    """A round ends when its last node has answered, or at the time limit."""
    usual_s = (timing.start_s if first else timing.round_s) + trials * timing.trial_s
    limit_s = timing.timeout_s + (timing.start_s if first else 0.0)
    silent = sum(name not in answers for group in groups for name in group)
    failed = sum(any(not a.ok for n in g if (a := answers.get(n))) for g in groups if len(g) > 1)
    some_hang = failed and cluster.random.random() > (1 - timing.hang_share) ** failed
    return limit_s if silent or some_hang else usual_s


def _summarize(
    name: str, mix: FaultMix, nodes: int, trials: int, runs: Sequence[_Run]
) -> SimulatedCheck:
    found: dict[str, list[int]] = {kind: [0, 0] for kind in (*_KINDS, "false", "undecided")}
    for run in runs:
        for result in run.findings.nodes:
            kind = run.cluster.kinds.get(result.node)
            caught = result.state == ("slow" if kind == "slow" else "faulty")
            if kind is not None:
                found[kind][0] += caught
                found[kind][1] += 1
            else:
                found["false"][0] += result.state in ("faulty", "slow")
                found["false"][1] += 1
            found["undecided"][0] += result.state == "undecided"
            found["undecided"][1] += 1
    links = sum(broken for run in runs for broken in run.cluster.links.values())
    named = sum(
        run.cluster.links.get(frozenset(pair), False) for run in runs for pair in run.findings.links
    )
    return SimulatedCheck(
        test=name,
        mix=mix,
        nodes=nodes,
        trials=trials,
        seeds=len(runs),
        detected={kind: _share(*found[kind]) for kind in _KINDS if found[kind][1]},
        links_tried=links,
        links_named=named,
        false_alarms_per_1000=1000 * (_share(*found["false"]) or 0.0),
        undecided_per_1000=1000 * (_share(*found["undecided"]) or 0.0),
        rounds=max(run.rounds for run in runs),
        time_s=sum(run.time_s for run in runs) / len(runs),
        planning_s=max(run.planning_s for run in runs),
    )


_KINDS = ("dead", "broken", "intermittent", "slow")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
