"""The `recovery.node_check` section of the config: finding nodes that do not work, and doing without."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from configs.files import resolved
from configs.nodecheck import ProbeSize
from configs.sections import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section


class NodeCheckConfig(Section):
    """After a failure of the infrastructure, on several nodes of a cluster; and `overland nodecheck`."""

    enabled: bool = True
    """False: nodes are excluded by the word of the logs alone."""
    timeout_s: PositiveFloat = 900.0
    """Of a whole check, the wait in the queue included; then what was found so far counts."""
    start_timeout_s: PositiveFloat = 180.0
    """From the job's start until a node must have answered the roll call: imports over shared storage."""
    round_timeout_s: PositiveFloat = 45.0
    """A node or a group that takes longer for its work has failed."""
    max_rounds: PositiveInt = 5
    """After the roll call. Two are the rule; more, when there are many suspects."""
    trials: PositiveInt = 3
    """How often a group repeats its work in a round: for faults that come and go."""
    spare_nodes: NonNegativeInt = 2
    """So many free nodes take part beside the run's own: somebody has to be known to be good."""
    slow_ratio: Annotated[float, Field(gt=1)] = 2.0
    """A node is slow that takes this many times the median, twice."""
    matmul_size: PositiveInt | None = None
    """Rows of the matrices that are multiplied; None: 8192 on GPUs, 512 without."""
    gather_mib: PositiveFloat | None = None
    """What each process contributes to an all-gather, in MiB; None: 64 on GPUs, 4 without."""

    exclude_slow: bool = False
    """True: slow nodes are excluded as faulty ones are."""
    drain: bool = True
    """Take faulty nodes out of service for everybody; needs an operator's rights."""
    history: Path | None = None
    """Folder, shared by all runs of a site, in which failures of nodes are kept; None: the run's own."""
    lemon_failures: PositiveInt = 2
    """A node that has failed in this many attempts within the window is excluded from then on."""
    lemon_window_days: PositiveFloat = 7.0
    """Also how long an exclusion lasts."""
    too_few_nodes: Literal["wait", "shrink"] = "wait"
    """When fewer nodes than the run needs are left. wait: for others; shrink: go on with fewer data-parallel
    replicas and the same global batch, as soon as there are nodes for that."""
    wait_for_nodes_s: NonNegativeFloat = 86_400.0
    """Then the run ends as failed."""

    @field_validator("history")
    @classmethod
    def _history_is_absolute(cls, path: Path | None) -> Path | None:
        return resolved(path) if path is not None else None

    @property
    def probe_size(self) -> ProbeSize:
        """The work of one probe."""
        return ProbeSize(
            trials=self.trials,
            matmul_size=self.matmul_size,
            gather_mib=self.gather_mib,
            timeout_s=self.round_timeout_s,
        )
