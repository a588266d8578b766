"""Types of what a node check asks, answers and finds: files that flow, nodes and stages share.

A check tries nodes alone, then in groups; each try of a group is a probe. Times are in seconds.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from configs.records import Record

REPORT_NAME = "report.json"
"""In a check's folder."""

NodeState = Literal["good", "faulty", "slow", "undecided", "down"]
"""down: the launcher cannot start anything on it. undecided: it failed, and could not be told apart from
the nodes that it failed with."""


class ProbeSize(Record):
    """How much work one probe is."""

    trials: int
    """How often the work is done in one probe: a fault that comes and goes has to miss them all."""
    matmul_size: int | None
    """Rows of the square matrices; None: 8192 on a GPU, 512 without."""
    gather_mib: float | None
    """Each process's part of the all-gather; None: 64 on a GPU, 4 without."""
    timeout_s: float
    """A probe that takes longer has failed."""


class RoundOrder(Record):
    """round_NN.json, from the flow to the nodes: which nodes try what together."""

    number: int
    groups: list[list[str]]
    size: ProbeSize


class NodeAnswer(Record):
    """round_NN/NODE.json: what a node says about its probe. A node that is dead says nothing."""

    ok: bool
    own_fault: bool = False
    """It failed by itself, before others could have a part in it: its device, or its arithmetic."""
    reason: str = ""
    matmul_s: float | None = None
    """Median of its matrix products."""
    gather_s: float | None = None
    """Median of its all-gathers, with the others of its group."""


class NodeResult(Record):
    """What the check found out about a node."""

    node: str
    state: NodeState
    reason: str = ""
    probes: int = 0
    """How many it took part in."""
    failures: int = 0
    matmul_s: float | None = None
    gather_s: float | None = None


class NodeCheckReport(Record):
    """report.json: what a node check found. Written last."""

    complete: bool
    """False: it ended early, and says why; what is in it is true all the same."""
    reason: str = ""
    nodes: list[NodeResult]
    links: list[tuple[str, str]] = Field(default_factory=list)
    """Pairs that failed though both of them passed with others: a link, or a fault that comes and goes."""
    rounds: int = 0
    jobs: int = 0
    """More than one where the check's own job was lost with a node."""
    started_at: float
    ended_at: float
    drained: list[str] = Field(default_factory=list)
    drain_errors: list[str] = Field(default_factory=list)
    """Why a node could not be taken out of service, a sentence each."""

    def named(self, *states: NodeState) -> list[str]:
        """Nodes in one of these states."""
        return [result.node for result in self.nodes if result.state in states]


class NodeFailure(Record):
    """A line of node_history.jsonl: an attempt failed, and this node is held to be the cause."""

    time: float
    node: str
    run: str
    """The run directory."""
    attempt: int
    cause: str
    """What the check or the diagnosis said."""


# --- simulation -----------------------------------------------------------------------------------


class FaultMix(Record):
    """Shares of the nodes with a fault of each kind, for a simulated check."""

    name: str = "given"
    dead: float = 0.0
    """Answer nothing."""
    broken: float = 0.0
    """Fail in every group."""
    intermittent: float = 0.0
    """Fail now and then."""
    intermittent_rate: float = 0.3
    """How often: probability of failing in one trial."""
    slow: float = 0.0
    slow_factor: float = 3.0
    slow_is_compute: bool = False
    """True: slow by its own work; False: only in exchanging data, so that its partners are slow too."""
    link: float = 0.0
    """Probability that the way between two nodes is broken, for each pair of nodes."""


class SimulatedCheck(Record):
    """What one kind of check made of one mix of faults."""

    test: str
    """paper: two rounds, one trial; overland: as a real check does it."""
    mix: FaultMix
    nodes: int
    trials: int
    seeds: int
    detected: dict[str, float]
    """Share of the faulty nodes that were found, by kind (slow ones: found slow)."""
    links_tried: int
    """Broken ways between nodes that happened to be tried, in all seeds."""
    links_named: int
    """Of these, those that the check names."""
    false_alarms_per_1000: float
    """Healthy nodes called faulty or slow, in 1,000."""
    undecided_per_1000: float
    rounds: int
    """After the roll call, at most."""
    time_s: float
    """Mean duration of a check."""
    planning_s: float
    """What deciding took of it on this machine, at most."""
