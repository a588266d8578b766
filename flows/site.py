"""Whether the cluster that a config names can be used, before a flow begins anything."""

from __future__ import annotations

from configs.rundir import RunDir
from configs.schema import RunConfig
from infra.launch import require_site


def check_site(config: RunConfig, *stages: str) -> None:
    """Raise SiteError when the jobs of `stages` could not be submitted. Data is prepared without jobs."""
    if set(stages) == {"prepare"}:
        return
    run = RunDir(config.resolved_run_dir())
    begun = any(attempt.record() is not None for attempt in run.attempts())
    require_site(config.launcher, begun=begun or bool(run.evaluations()), folder=run.path)
