"""A node check's jobs, by the launcher."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from configs.schema import RunConfig
from infra.interrupt import raise_if_interrupted
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus, Launcher
from infra.launch.news import JobNews, Say
from tasks.recover.nodecheck_files import CheckFiles
from tasks.recover.nodecheck_job import player_names
from tasks.recover.nodecheck_run import JobView

_JOB_MODULE = "tasks.recover.nodecheck_job"


@dataclass
class LauncherJobs:
    """What a node check needs of a launcher (:class:`tasks.recover.nodecheck_run.CheckJobs`)."""

    config: RunConfig
    launcher: Launcher
    key: str
    spare_nodes: int
    exclude: tuple[str, ...] = ()
    say: Say | None = None
    news: dict[str, JobNews] = field(default_factory=dict)
    """By the job's number."""

    @property
    def can_drain(self) -> bool:
        return self.config.launcher.kind != "local"

    def usable(self) -> list[str]:
        return usable_nodes(self.config, self.launcher)

    def lost(self) -> list[str]:
        return self.launcher.lost_nodes()

    def start(self, files: CheckFiles, nodes: Sequence[str]) -> None:
        raise_if_interrupted()
        if self.launcher.find(files.job_dir) is None:
            self.launcher.submit(self._spec(files, nodes))

    def look(self, files: CheckFiles) -> JobView:
        raise_if_interrupted()
        handle = self.launcher.find(files.job_dir)
        if handle is None:
            return JobView(running=False, ended=True, words="its record is gone")
        status = self.launcher.poll(handle)
        self._tell(handle, status)
        nodes = status.nodes
        if self.config.launcher.kind == "local":
            nodes = tuple(self.usable())
        state = status.state
        words = f"{state}: {status.reason}" if state.final else status.reason
        return JobView(state is JobState.RUNNING and bool(nodes), state.final, nodes, words)

    def _tell(self, handle: JobHandle, status: JobStatus) -> None:
        if self.say is not None and self.can_drain:
            what = f"job {handle.job_id} (node check)"
            self.news.setdefault(handle.job_id, JobNews(what, self.say)).see(status)

    def end(self, files: CheckFiles) -> None:
        handle = self.launcher.find(files.job_dir)
        if handle is not None:
            self.launcher.cancel(handle, grace_s=5.0 if files.done.exists() else 0.0)

    def drain(self, node: str, reason: str) -> None:
        self.launcher.cordon(node, reason)

    def _spec(self, files: CheckFiles, nodes: Sequence[str]) -> JobSpec:
        launcher, settings = self.config.launcher, self.config.recovery.node_check
        idle_s = settings.start_timeout_s + 2 * settings.round_timeout_s
        argv = [sys.executable, "-P", "-m", _JOB_MODULE, str(files.folder)]
        argv.append(f"--idle-timeout-s={idle_s:g}")
        is_local = launcher.kind == "local"
        if is_local:
            argv.append(f"--players={len(nodes)}")
        elif launcher.slurm.gpus_per_node:
            argv.append(f"--processes={launcher.processes_per_node}")
        return JobSpec(
            key=f"{self.key}/{files.folder.name}",
            name=f"{self.config.name}-nodecheck",
            argv=tuple(argv),
            job_dir=files.job_dir,
            environment={"PYTHONSAFEPATH": "1"},
            each_node=not is_local,
            nodes=1 if is_local else len(nodes),
            more_nodes=self.spare_nodes,
            exclude_nodes=self.exclude,
            need_nodes=() if is_local else tuple(nodes),
            time_limit_s=settings.timeout_s,
        )


def usable_nodes(config: RunConfig, launcher: Launcher, *, also_down: bool = False) -> list[str]:
    """All nodes that can run jobs; on one machine its own processes, each with a GPU where there are
    some."""
    if config.launcher.kind == "local":
        return player_names(config.launcher.processes_per_node)
    return launcher.nodes(also_down=also_down)
