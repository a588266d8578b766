"""The `launcher.slurm` section of the config: a site's Slurm, and what jobs ask of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from configs.files import resolved
from configs.sections import NonNegativeInt, PositiveFloat, PositiveInt, Section


class SlurmConfig(Section):
    """For launcher.kind slurm."""

    url: str | None = None
    """Of slurmrestd, like http://login:6820."""
    user: str | None = None
    """Whose jobs they are; None: who runs the flow. The token must be theirs."""
    token_file: Path | None = None
    """A file with a token (`scontrol token`), readable by its owner only. Read again as it expires."""
    token_command: list[str] = Field(default_factory=list)
    """Program and arguments that print a token; instead of token_file."""
    scontrol: list[str] = Field(default_factory=lambda: ["scontrol"])
    """Drains a node where the server's REST dialect cannot (v0.0.38)."""

    partition: str | None = None
    low_priority_partition: str | None = None
    """For jobs that give way to others (evaluation); None: as `partition`."""
    cpu_partition: str | None = None
    """For jobs that need no GPU (export and scoring); None: as for others that give way."""
    account: str | None = None
    qos: str | None = None
    low_priority_qos: str | None = None
    """For jobs that give way to others; None: as `qos`."""
    low_priority_nice: Annotated[int, Field(ge=0, le=2_147_483_645)] | None = None
    """Taken off the priority of such jobs, as sbatch --nice does; None: nothing."""
    constraints: str | None = None
    """Node features, as for sbatch."""
    dependency: str | None = None
    """Jobs that come before the run's first training job, as for sbatch, like afterok:17."""
    gpus_per_node: NonNegativeInt = 0
    """For training jobs."""
    gpu_type: str | None = None
    cpus_per_node: PositiveInt | None = None
    """None: processes_per_node x cpu_threads (or 1)."""
    memory_per_node_gib: PositiveFloat | None = None
    """None: the partition's default."""
    time_limit_minutes: PositiveInt | None = None
    """Of each job; None: the partition's default."""
    warning_s: PositiveInt | None = None
    """SIGUSR1 this long before the time limit: training saves, and goes on in a new job."""
    network_interface: str | None = None
    """Over which ranks on several nodes talk, like ib0; None: as the nodes' names resolve."""

    withhold: list[str] = Field(
        default_factory=lambda: [
            "PREFECT_*",
            "MLFLOW_TRACKING_USERNAME",
            "MLFLOW_TRACKING_PASSWORD",
            "MLFLOW_TRACKING_TOKEN",
            "*_API_KEY",
        ]
    )
    """Environment variables of the flow that its jobs don't get, as patterns; all others travel to the
    server and the nodes."""
    poll_interval_s: PositiveFloat = 2.0
    """At most one query this often, for all jobs together."""
    patience_s: PositiveFloat = 900.0
    """How long the server may be away before the flow gives up; jobs go on in any case."""

    @field_validator("token_file")
    @classmethod
    def _token_file_is_absolute(cls, path: Path | None) -> Path | None:
        return resolved(path) if path is not None else None
