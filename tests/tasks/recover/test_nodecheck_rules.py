"""Whom a node check tries with whom, and what it makes of the answers: every kind of fault, and luck."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.nodecheck import NodeAnswer
from tasks.recover.nodecheck import Findings, Group, Round, Rules, judge, next_groups
from tasks.recover.nodecheck_pairs import pair_with_trusted
from tasks.recover.nodecheck_simulation import PAPER

LONG = Rules(max_rounds=50)


@dataclass
class Cluster:
    """Nodes that answer as their faults let them."""

    nodes: Sequence[str]
    dead: set[str] = field(default_factory=set)
    deaf: dict[str, set[int]] = field(default_factory=dict)
    """Node -> rounds in which it answers nothing."""
    broken: set[str] = field(default_factory=set)
    broken_device: set[str] = field(default_factory=set)
    links: set[frozenset[str]] = field(default_factory=set)
    flaky: dict[str, Callable[[int], bool]] = field(default_factory=dict)
    """Node -> whether it fails in a round."""
    slow_compute: dict[str, float] = field(default_factory=dict)
    slow_exchange: dict[str, float] = field(default_factory=dict)

    def answers(self, number: int, group: Group) -> dict[str, NodeAnswer]:
        silent = {n for n in group if n in self.dead or number in self.deaf.get(n, ())}
        devices = self.broken_device & set(group)
        together = len(group) > 1
        pairs = {frozenset((a, b)) for a in group for b in group if a != b}
        failed = bool(silent or devices)
        if together:
            failed = failed or bool(self.broken & set(group) or self.links & pairs)
            failed = failed or any(self.flaky[n](number) for n in group if n in self.flaky)
        gather_s = max(self.slow_exchange.get(n, 1.0) for n in group)
        return {
            name: NodeAnswer(
                ok=name not in devices and not (failed and together),
                own_fault=name in devices,
                reason="broken",
                matmul_s=self.slow_compute.get(name, 1.0),
                gather_s=gather_s if together and not failed else None,
            )
            for name in group
            if name not in silent
        }

    def check(self, rules: Rules = LONG) -> tuple[Findings, list[Round]]:
        rounds: list[Round] = []
        while groups := next_groups(self.nodes, rounds, rules):
            answers: dict[str, NodeAnswer] = {}
            members = [name for group in groups for name in group]
            assert len(set(members)) == len(members), "nobody is in two groups"
            assert set(members) <= set(self.nodes)
            assert all(1 <= len(group) <= 3 for group in groups)
            for group in groups:
                answers |= self.answers(len(rounds), group)
            rounds.append(Round(groups, answers))
            assert len(rounds) <= rules.max_rounds + 1
        return judge(self.nodes, rounds, rules), rounds


def named(findings: Findings, state: str) -> set[str]:
    return {result.node for result in findings.nodes if result.state == state}


def nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


@pytest.mark.parametrize("count", range(1, 10))
def test_good_nodes_need_one_round(count: int) -> None:
    findings, rounds = Cluster(nodes(count)).check()
    assert named(findings, "good") == set(nodes(count))
    assert len(rounds) == (1 if count == 1 else 2)
    assert sorted(map(len, rounds[-1].groups))[-1:] == [
        3 if count > 1 and count % 2 else min(count, 2)
    ]


def test_the_first_groups_are_pairs_and_an_odd_one_makes_three() -> None:
    _, rounds = Cluster(nodes(5)).check()
    assert rounds[0].groups == [("n0",), ("n1",), ("n2",), ("n3",), ("n4",)]
    assert rounds[1].groups == [("n0", "n1"), ("n2", "n3", "n4")]


@pytest.mark.parametrize("count", range(3, 10))
@pytest.mark.parametrize("kind", ["dead", "broken", "broken_device"])
def test_one_faulty_node_is_found_wherever_it_is(count: int, kind: str) -> None:
    for bad in nodes(count):
        findings, _ = Cluster(nodes(count), **{kind: {bad}}).check(Rules())
        assert named(findings, "faulty") == {bad}
        assert named(findings, "good") == set(nodes(count)) - {bad}
        assert findings.links == []


def test_the_papers_example() -> None:
    """Six nodes, the last one bad: {5,6} fails, then {4,6} does."""
    findings, rounds = Cluster(nodes(6), broken={"n5"}).check()
    assert len(rounds) == 3
    assert {group for group in rounds[2].groups} == {("n4", "n0"), ("n5", "n1")}
    assert named(findings, "faulty") == {"n5"}


def test_two_nodes_alone_cannot_be_told_apart() -> None:
    findings, rounds = Cluster(nodes(2), broken={"n0"}).check()
    assert named(findings, "undecided") == {"n0", "n1"}
    assert len(rounds) == 2


def test_a_silent_node_needs_nobody_to_convict_it() -> None:
    findings, rounds = Cluster(nodes(2), dead={"n0"}).check()
    assert named(findings, "faulty") == {"n0"}
    assert rounds[1].groups == [("n0",)], "a node that is silent is not tried with others"
    (result,) = [r for r in findings.nodes if r.node == "n0"]
    assert result.reason == "it does not answer"


def test_a_node_that_was_silent_once_is_tried_again() -> None:
    findings, _ = Cluster(nodes(4), deaf={"n1": {0}}).check()
    assert named(findings, "good") == set(nodes(4))
    findings, _ = Cluster(nodes(4), deaf={"n1": {0, 2}}).check()
    assert named(findings, "faulty") == {"n1"}


@pytest.mark.parametrize("bad", [5, 6])
def test_more_suspects_than_good_nodes_take_further_rounds(bad: int) -> None:
    cluster = Cluster(nodes(8), broken=set(nodes(8)[:bad]))
    findings, rounds = cluster.check(Rules(max_rounds=9))
    assert named(findings, "faulty") == set(nodes(8)[:bad])
    assert named(findings, "good") == set(nodes(8)[bad:])
    assert len(rounds) > 4


def test_when_no_group_has_passed_suspects_are_paired_anew() -> None:
    """Each first pair has a bad node in it."""
    findings, rounds = Cluster(nodes(6), broken={"n0", "n2", "n4"}).check()
    assert not any(answer.ok for answer in rounds[1].answers.values())
    assert named(findings, "faulty") == {"n0", "n2", "n4"}
    assert named(findings, "good") == {"n1", "n3", "n5"}


def test_a_broken_link_condemns_nobody_and_is_named() -> None:
    findings, _ = Cluster(nodes(6), links={frozenset(("n0", "n1"))}).check()
    assert named(findings, "good") == set(nodes(6))
    assert findings.links == [("n0", "n1")]


def test_a_second_broken_link_would_mislead_the_papers_test_alone() -> None:
    """n0 sits in a bad pair, and the way to the partner of its second try is broken as well."""
    cluster = Cluster(nodes(8), broken={"n1"}, links={frozenset(("n0", "n2"))})
    paper, rounds = cluster.check(PAPER)
    assert ("n0", "n2") in rounds[2].groups
    assert named(paper, "faulty") == {"n0", "n1"}
    ours, _ = cluster.check()
    assert named(ours, "faulty") == {"n1"}
    assert ours.links == [("n0", "n2")]


def test_a_partner_whose_fault_comes_and_goes_condemns_nobody() -> None:
    """n2 passes the first round, and fails when it is to clear n0."""
    cluster = Cluster(nodes(8), broken={"n1"}, flaky={"n2": lambda number: number == 2})
    assert named(cluster.check(PAPER)[0], "faulty") == {"n0", "n1"}
    assert named(cluster.check()[0], "faulty") == {"n1"}


def test_a_fault_that_comes_and_goes_is_tried_twice() -> None:
    """n0 fails, passes, and fails again: the plain test lets it go after the second round."""
    cluster = Cluster(nodes(8), flaky={"n0": lambda number: number in (1, 3)})
    assert named(cluster.check(PAPER)[0], "faulty") == set()
    assert named(cluster.check()[0], "faulty") == {"n0"}


def test_a_node_slow_by_itself_is_found_without_further_rounds() -> None:
    findings, rounds = Cluster(nodes(6), slow_compute={"n3": 2.5}).check()
    assert named(findings, "slow") == {"n3"}
    assert len(rounds) == 2
    (result,) = [r for r in findings.nodes if r.state == "slow"]
    assert result.reason == "matrix product 2.5 times the median"


@pytest.mark.parametrize("count", [4, 7, 10])
def test_a_node_slow_to_exchange_is_told_from_its_partner(count: int) -> None:
    for bad in nodes(count):
        findings, rounds = Cluster(nodes(count), slow_exchange={bad: 3.0}).check()
        assert named(findings, "slow") == {bad}
        assert len(rounds) == 3


def test_what_varies_less_than_the_ratio_is_not_slow() -> None:
    findings, _ = Cluster(nodes(6), slow_compute={"n3": 1.9}, slow_exchange={"n1": 1.9}).check()
    assert named(findings, "slow") == set()


def test_a_node_slow_once_is_not_slow() -> None:
    cluster = Cluster(nodes(4), slow_compute={"n3": 3.0})
    first, second = ([("n0",), ("n1",), ("n2",), ("n3",)], [("n0", "n1"), ("n2", "n3")])
    slow = {n: a for group in first for n, a in cluster.answers(0, group).items()}
    usual = {n: a for group in second for n, a in Cluster(nodes(4)).answers(1, group).items()}
    rounds = [Round(first, slow), Round(second, usual)]
    assert next_groups(nodes(4), rounds, LONG) == []
    assert named(judge(nodes(4), rounds, LONG), "slow") == set()


def test_a_failing_node_is_faulty_whether_it_is_slow_or_not() -> None:
    findings, _ = Cluster(nodes(6), broken={"n1"}, slow_compute={"n1": 9.0}).check()
    assert named(findings, "faulty") == {"n1"}


def test_a_node_lost_on_the_way_is_no_failure_of_its_partner() -> None:
    findings, _ = Cluster(nodes(4), deaf={"n1": set(range(1, 9))}).check()
    results = {result.node: result for result in findings.nodes}
    assert results["n1"].state == "faulty"
    assert (results["n0"].state, results["n0"].failures) == ("good", 0)


def test_one_failure_is_not_enough_when_the_rounds_are_over() -> None:
    """n0 comes late, and fails in the only round that is left."""
    cluster = Cluster(nodes(5), deaf={"n0": {0}}, broken={"n0"})
    findings, rounds = cluster.check(Rules(max_rounds=2))
    assert [group for group in rounds[2].groups if "n0" in group] == [("n0", "n1")]
    assert named(findings, "undecided") == {"n0"}
    assert named(cluster.check()[0], "faulty") == {"n0"}


def test_who_has_waited_is_tried_first() -> None:
    """Two nodes have passed, for six suspects."""
    _, rounds = Cluster(nodes(8), broken=set(nodes(8)[:6])).check(Rules(max_rounds=9))
    waited = set(nodes(8)[:6]) - {name for group in rounds[2].groups for name in group}
    assert len(waited) == 4
    assert {name for group in rounds[3].groups for name in group} & waited


def test_with_everybody_trusted_tried_suspects_are_paired_among_themselves() -> None:
    tried = {"a": {"t"}, "b": {"t"}}
    assert pair_with_trusted(["a", "b"], ["t"], tried) == [("a", "b")]
    assert pair_with_trusted(["a", "b"], ["t", "u"], tried) == [("a", "u")]
    both = {"a": {"t", "b"}, "b": {"t", "a"}}
    assert pair_with_trusted(["a", "b"], ["t"], both) == []


def test_rounds_end_at_their_limit_and_what_is_open_is_undecided() -> None:
    findings, rounds = Cluster(nodes(8), broken=set(nodes(8)[:6])).check(Rules(max_rounds=1))
    assert len(rounds) == 2
    assert named(findings, "faulty") == set()
    assert named(findings, "undecided") == set(nodes(8)[:6])
    assert named(findings, "good") == set(nodes(8)[6:])


@settings(deadline=None, max_examples=300)
@given(
    count=st.integers(3, 24),
    seed=st.integers(0, 10_000),
    shares=st.tuples(st.floats(0, 0.3), st.floats(0, 0.5)),
)
def test_lasting_faults_are_all_found_and_no_healthy_node_is_called_faulty(
    count: int, seed: int, shares: tuple[float, float]
) -> None:
    luck = random.Random(seed)
    names = nodes(count)
    luck.shuffle(names)
    dead = set(names[: int(shares[0] * count)])
    broken = set(names[len(dead) : len(dead) + int(shares[1] * count)])
    healthy = set(names) - dead - broken
    findings, _ = Cluster(nodes(count), dead=dead, broken=broken).check()
    assert not named(findings, "faulty") & healthy
    assert dead <= named(findings, "faulty")
    assert findings.links == []
    if len(healthy) >= 3:
        assert named(findings, "faulty") == dead | broken
        assert named(findings, "good") == healthy


@settings(deadline=None, max_examples=300)
@given(count=st.integers(6, 24), seed=st.integers(0, 10_000), bad=st.integers(0, 3))
def test_one_broken_link_never_condemns_a_healthy_node(count: int, seed: int, bad: int) -> None:
    luck = random.Random(seed)
    # With two of seven nodes broken, a broken link beside them may condemn one of its ends too.
    broken = set(luck.sample(nodes(count), min(bad, count // 4)))
    link = frozenset(luck.sample(nodes(count), 2))
    findings, _ = Cluster(nodes(count), broken=broken, links={link}).check()
    assert named(findings, "faulty") == broken
    assert set(findings.links) <= {tuple(sorted(link))}


@settings(deadline=None, max_examples=200)
@given(count=st.integers(1, 30), seed=st.integers(0, 10_000), rate=st.floats(0, 1))
def test_whatever_happens_a_check_ends_and_each_node_has_a_result(
    count: int, seed: int, rate: float
) -> None:
    luck = random.Random(seed)

    def fails(_: int) -> bool:
        return luck.random() < rate

    cluster = Cluster(
        nodes(count),
        flaky=dict.fromkeys(luck.sample(nodes(count), count // 2), fails),
        deaf={n: {luck.randrange(6)} for n in luck.sample(nodes(count), count // 4)},
        slow_exchange={n: 1 + 4 * luck.random() for n in luck.sample(nodes(count), count // 3)},
    )
    findings, _ = cluster.check(Rules(max_rounds=luck.randrange(1, 8)))
    assert [result.node for result in findings.nodes] == nodes(count)
