"""What a Slurm job gets of its submitter's environment. It travels to the server and is kept there."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from infra.launch.base import JobSpec

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_A_JOB = ("SLURM_*", "SLURMD_*", "SBATCH_*")
_UNKNOWN_PATH = "/usr/local/bin:/usr/bin:/bin"


def job_environment(spec: JobSpec, withhold: Sequence[str]) -> dict[str, str]:
    """The submitter's, without what belongs to a job that the submitter itself runs in, and without the
    secrets of the flow, which jobs have no use for."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if _VARIABLE.fullmatch(name)
        and not any(fnmatchcase(name, pattern) for pattern in (*_OF_A_JOB, *withhold))
    }
    return {"PATH": _UNKNOWN_PATH} | inherited | dict(spec.environment)
