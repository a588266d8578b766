"""The course of a node check: gives the nodes one round after another, and ends each in time.

All of its state is in the check's folder: a flow that is killed and started again goes on with the
round under way. It knows nothing of the job that the nodes' programs run in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from configs.nodecheck import NodeAnswer, ProbeSize, RoundOrder
from tasks.recover.nodecheck import Findings, Round, Rules, judge, next_groups
from tasks.recover.nodecheck_files import CheckFiles, ClosedRound

_MARGIN_S = 10.0
"""For storage that shows a file late, and for a process that has to be killed."""


@dataclass
class Course:
    """One check of some nodes."""

    files: CheckFiles
    nodes: Sequence[str]
    rules: Rules
    size: ProbeSize
    start_timeout_s: float
    _rounds: list[Round] = field(default_factory=list)
    _order: RoundOrder | None = None
    _deadline_s: float = 0.0
    _answers: dict[str, NodeAnswer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rounds = [
            Round([tuple(group) for group in closed.groups], closed.answers)
            for closed in self.files.closed()
        ]

    @property
    def rounds(self) -> int:
        """Rounds that have ended, without the roll call."""
        return max(0, len(self._rounds) - 1)

    def advance(self) -> bool:
        """Look at what has come back, and give the next order when it is time; True when all is done."""
        if self._order is None and not self._begin_round():
            return True
        if self._order is not None and self._is_over(self._order):
            self._close(self._order)
            return not self._begin_round()
        return False

    def findings(self) -> Findings:
        """What the rounds that have ended say. Of one that is cut short nothing counts: a node that has
        not answered yet is not silent."""
        return judge(self.nodes, self._rounds, self.rules)

    def _begin_round(self) -> bool:
        number = len(self._rounds)
        order = self.files.order(number)
        if order is None:
            groups = next_groups(self.nodes, self._rounds, self.rules)
            if not groups:
                return False
            order = RoundOrder(number=number, groups=[list(g) for g in groups], size=self.size)
            self.files.give(order)
        limit_s = order.size.timeout_s + _MARGIN_S
        if number == 0:
            limit_s += self.start_timeout_s
        self._order, self._answers = order, {}
        self._deadline_s = time.monotonic() + limit_s
        return True

    def _is_over(self, order: RoundOrder) -> bool:
        wanted = [node for group in order.groups for node in group]
        for node in wanted:
            if node not in self._answers:
                answer = self.files.answer(order.number, node)
                if answer is not None:
                    self._answers[node] = answer
        return len(self._answers) == len(wanted) or time.monotonic() > self._deadline_s

    def _close(self, order: RoundOrder) -> None:
        self.files.close(order.number, ClosedRound(groups=order.groups, answers=self._answers))
        self._rounds.append(Round([tuple(group) for group in order.groups], self._answers))
        self._order = None
