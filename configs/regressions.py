"""Types of two files beside an evaluation's scores: what has regressed, and why there are no scores."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from configs.records import Record


class Regression(Record):
    """One metric of a checkpoint that is worse than before."""

    task: str
    metric: str
    """As in scores.json."""
    value: float
    usual: float
    """Median of the newest three checkpoints that it was compared with."""
    worse_by: float
    limit: float
    """It may be worse by so much."""
    deviation: float
    """Standard deviation that the value would have by chance."""
    higher_is_better: bool
    since_step: int
    """The first of the checkpoints in a row that have regressed here."""

    @property
    def said(self) -> str:
        """`heldout_cloze acc 0.21, usually 0.31 (worse by 0.1, limit 0.03)`."""
        name = f"{self.task} {self.metric.removesuffix(',none')}"
        return (
            f"{name} {self.value:.4g}, usually {self.usual:.4g} "
            f"(worse by {self.worse_by:.3g}, limit {self.limit:.3g})"
        )


class Alert(Record):
    """How the alert about a regression went out. It is told again until both have been tried."""

    event: str = ""
    """Of Prefect: emitted, or why not. Empty: not tried yet."""
    webhook: str = ""
    """sent, unset, or why not; never the URL."""


class RegressionReport(Record):
    """regressions.json: a checkpoint's scores against those of the checkpoints before it."""

    step: int
    checkpoint: str = ""
    """SHA-256 of the commit marker of the checkpoint that was evaluated."""
    compared_with: list[int]
    """Steps of the checkpoints, in order."""
    regressions: list[Regression]
    """The worst first."""
    not_found: list[str] = Field(default_factory=list)
    """Metrics that the config names and the scores do not have."""
    unhealthy: bool = False
    """Rollbacks and retention pass over it. A person may set this to false."""
    alert: Alert | None = None
    """None when there is nothing to tell: no regression, or the same ones as before."""
    judged_at: float

    @property
    def is_new(self) -> bool:
        """Whether anything has regressed here that had not before."""
        return any(found.since_step == self.step for found in self.regressions)

    @property
    def said(self) -> str:
        """The worst regression, and how many others there are."""
        if not self.regressions:
            return "no regression"
        more = len(self.regressions) - 1
        others = f", and {more} more" if more else ""
        return f"{self.regressions[0].said}{others}"


class EvaluationLeftOut(Record):
    """left_out.json: why a checkpoint that was due is not evaluated."""

    step: int
    checkpoint: str = ""
    reason: Literal["behind"] = "behind"
    waiting: int
    """Checkpoints that waited when it was left out."""
    left_out_at: float

    @property
    def said(self) -> str:
        """In words."""
        return f"left out: {self.waiting} checkpoints waited, and newer ones go first"
