"""The `evaluate.regressions` section of the config: when a checkpoint's scores are worse than before."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from configs.sections import NonNegativeFloat, PositiveFloat, PositiveInt, Section


class MetricThreshold(Section):
    """For one metric or task, in place of what is said for all."""

    metric: str
    """TASK/METRIC as in scores.json (`,none` may be left out), or TASK for all metrics of a task."""
    relative: NonNegativeFloat | None = None
    absolute: NonNegativeFloat | None = None
    higher_is_better: bool | None = None
    """For a metric whose task does not say so."""


class RegressionConfig(Section):
    """What counts as a regression against the checkpoints before, and what follows from one.

    A value has regressed when it is worse than the usual one by more than `relative`, `absolute` and
    `deviations` allow, each of them.
    """

    enabled: bool = True
    """False: scores are not compared."""
    window: Annotated[int, Field(ge=3)] = 8
    """Scored checkpoints before it that a checkpoint is compared with."""
    min_history: Annotated[int, Field(ge=3)] = 4
    """With fewer of them nothing is said."""
    relative: NonNegativeFloat = 0.05
    """Share of the usual value."""
    absolute: NonNegativeFloat = 0.0
    """In the metric's own unit."""
    deviations: NonNegativeFloat = 3.0
    """Standard deviations: those between checkpoints, and the value's own standard error, together."""
    metrics: list[str] = Field(default_factory=list)
    """Compare only these (TASK or TASK/METRIC); empty: all whose better direction is known."""
    thresholds: list[MetricThreshold] = Field(default_factory=list)
    """For single metrics; TASK/METRIC counts before TASK."""
    mark_unhealthy: bool = False
    """Rollbacks, and the one healthy checkpoint that is always kept, pass over a checkpoint that regressed."""
    webhook_env: str | None = None
    """Name of the environment variable with a URL that alerts are posted to; None: nowhere."""
    webhook_timeout_s: PositiveFloat = 10.0
    """Limit of one such request, all of it."""
    webhook_tries: PositiveInt = 2
    """How often it is tried."""
