"""Prefect tasks of the recover stage: which nodes to do without, what to do about a verdict, where the time went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.errors import RunFailedError
from configs.nodecheck import NodeCheckReport, NodeFailure, NodeState
from configs.records import Action, Goodput, Verdict
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RunConfig
from infra.interrupt import held_off, raise_if_interrupted
from infra.launch import make_launcher
from infra.launch.news import Say
from tasks.recover.fewer_nodes import on_fewer_nodes
from tasks.recover.goodput import compute_goodput
from tasks.recover.node_history import lemons, remember, still_excluded
from tasks.recover.nodecheck_run import end_quietly, read_report, run_check
from tasks.recover.place import listed
from tasks.recover.policy import attempt_history, decide
from tasks.recover.rollback import ground_of
from tasks.recover.task_check import LauncherJobs, usable_nodes

_WAIT_INTERVAL_S = 15.0
_SUSPICIOUS = ("CUDAError", "NCCLTimeoutError", "NCCLRemoteError")
"""Classes that blame no node but may well come from one."""


@task(name="check-nodes", cache_policy=NO_CACHE)
def check_suspects(
    config: RunConfig, number: int, verdict: Verdict, say: Say | None = None
) -> NodeCheckReport | None:
    """Check the nodes of a failed attempt when its failure may come from one of them; None: no need.
    `say` tells whoever looks on how the check's job stands."""
    run = RunDir(config.resolved_run_dir())
    attempt = run.attempt(number)
    record = attempt.record()
    wanted = verdict.category == "infrastructure" and verdict.failure_class in _SUSPICIOUS
    wanted = wanted or verdict.action == "restart_exclude_node"
    on_cluster = config.launcher.kind == "slurm" and config.launcher.nodes > 1
    settings = config.recovery.node_check
    report = None
    if wanted and on_cluster and settings.enabled and record is not None and record.nodes:
        folder = check_folder(attempt)
        get_run_logger().info("attempt %d: its nodes are checked", number)
        left_out = [node for node in _left_out(config, run) if node not in record.nodes]
        report = check_nodes(
            config,
            folder,
            record.nodes,
            spare_nodes=settings.spare_nodes,
            exclude=left_out,
            say=say,
        )
        get_run_logger().info("attempt %d: %s", number, _words(report))
    if wanted:
        remember(run, settings, _failures(run, number, verdict, report))
    return report


def check_folder(attempt: AttemptDir) -> Path:
    """Of the node check after an attempt."""
    return attempt.path / "nodecheck"


def check_nodes(
    config: RunConfig,
    folder: Path,
    nodes: Sequence[str],
    *,
    spare_nodes: int = 0,
    exclude: Sequence[str] = (),
    say: Say | None = None,
) -> NodeCheckReport:
    """Check nodes in a job of its own, with spare ones but for `exclude`; also goes on with a check that
    was interrupted in this folder. `say` tells whoever looks on how the job stands."""
    launcher = make_launcher(config.launcher)
    jobs = LauncherJobs(config, launcher, str(folder), spare_nodes, tuple(exclude), say)
    try:
        return run_check(jobs, folder, nodes, config.recovery.node_check)
    except KeyboardInterrupt:
        with held_off():
            if say is not None:
                say("interrupted: the node check's job is ended")
            end_quietly(jobs, folder)
        raise


def cancel_check(config: RunConfig) -> None:
    """End the node check after the newest attempt, if one is under way, for a flow that follows it no
    more: its nodes would wait for their next order until their patience is over."""
    attempts = RunDir(config.resolved_run_dir()).attempts()
    if attempts and (folder := check_folder(attempts[-1])).is_dir() and not read_report(folder):
        end_quietly(LauncherJobs(config, make_launcher(config.launcher), str(folder), 0), folder)


def all_nodes(config: RunConfig, *, also_down: bool = False) -> list[str]:
    """What `overland nodecheck` checks: all nodes that can run jobs, or what this machine plays."""
    return usable_nodes(config, make_launcher(config.launcher), also_down=also_down)


def _words(report: NodeCheckReport) -> str:
    parts = [f"{listed(bad)} {state}" for state in _STATES if (bad := report.named(state))]
    parts += [f"drained {listed(report.drained)}"] if report.drained else []
    parts += [f"not drained: {error}" for error in report.drain_errors]
    parts += [] if report.complete else [f"it did not end: {report.reason}"]
    return f"{len(report.nodes)} nodes checked: {'; '.join(parts) or 'all good'}"


_STATES: tuple[NodeState, ...] = ("faulty", "down", "slow", "undecided")


def _failures(
    run: RunDir, number: int, verdict: Verdict, report: NodeCheckReport | None
) -> list[NodeFailure]:
    """Nodes to remember: what the check has found, and the one that the diagnosis names."""
    causes = {verdict.faulty_node: verdict.failure_class} if verdict.faulty_node else {}
    for result in report.nodes if report else []:
        if result.state in ("faulty", "down"):
            causes[result.node] = f"node check: {result.reason}"
    now = time.time()
    return [
        NodeFailure(time=now, node=node, run=str(run.path), attempt=number, cause=cause)
        for node, cause in causes.items()
    ]


@task(name="decide-action", cache_policy=NO_CACHE)
def decide_action(config: RunConfig, number: int) -> Action:
    """Decide on the failed attempt by its verdict, its node check and the run's history; keeps an earlier
    decision."""
    run = RunDir(config.resolved_run_dir())
    attempt = run.attempt(number)
    action = attempt.action()
    if action is None:
        pool = make_launcher(config.launcher).nodes()
        action = decide(
            attempt_history(run),
            config.recovery,
            now=time.time(),
            pool=pool,
            ground=ground_of(run, config.train),
            check=read_report(check_folder(attempt)),
        )
        write_record(attempt.action_path, action)
    get_run_logger().info("attempt %d: %s", number, action.reason)
    return action


# --- before an attempt ----------------------------------------------------------------------------


@dataclass(frozen=True)
class NextAttempt:
    """How and where the next attempt is to run."""

    config: RunConfig
    exclude: tuple[str, ...] = ()
    """Nodes to do without."""


def plan_attempt(config: RunConfig) -> NextAttempt:
    """Without nodes that fail again and again, on fewer nodes if it must be, or after a wait for nodes.

    An attempt that may still run keeps its size.
    """
    run = RunDir(config.resolved_run_dir())
    attempts = run.attempts()
    record = attempts[-1].record() if attempts else None
    if record is not None and record.outcome is None:
        kept = RunConfig.model_validate_json(attempts[-1].config_path.read_bytes())
        is_smaller = kept.launcher.nodes < config.launcher.nodes
        return NextAttempt(kept if is_smaller else config)
    if config.launcher.kind == "local":
        return NextAttempt(config)
    if record and record.outcome == "completed":
        return NextAttempt(config, tuple(_left_out(config, run)))
    return _with_enough_nodes(config, run)


def _left_out(config: RunConfig, run: RunDir) -> list[str]:
    """Nodes to do without as of now: those that actions have excluded, and lemons."""
    settings, now = config.recovery.node_check, time.time()
    actions = [attempt.action() for attempt in run.attempts()]
    gone = still_excluded(actions, settings, now=now)
    if bad := [node for node in lemons(run, settings, now=now) if node not in gone]:
        get_run_logger().warning("%s failed too often: left out", listed(bad))
    return sorted({*gone, *bad})


def _with_enough_nodes(config: RunConfig, run: RunDir) -> NextAttempt:
    settings, wanted = config.recovery.node_check, config.launcher.nodes
    out = _left_out(config, run)
    if not out:
        return NextAttempt(config)  # Slurm knows best how long to wait for its nodes.
    launcher, logger = make_launcher(config.launcher), get_run_logger()
    deadline_s = time.monotonic() + settings.wait_for_nodes_s
    said = ""
    while True:
        raise_if_interrupted()
        usable = set(launcher.nodes()) - set(out)
        if len(usable) >= wanted:
            return NextAttempt(config, tuple(out))
        fewer = on_fewer_nodes(config, len(usable)) if settings.too_few_nodes == "shrink" else None
        if fewer is not None:
            logger.warning(
                "%d nodes are left: going on with %d of %d",
                len(usable),
                fewer.launcher.nodes,
                wanted,
            )
            return NextAttempt(fewer, tuple(out))
        words = f"{len(usable)} of {wanted} nodes can be used, without {listed(out)}"
        if time.monotonic() > deadline_s:
            raise RunFailedError(
                f"{words}: no more came within {settings.wait_for_nodes_s:g} s "
                "(recovery.node_check.wait_for_nodes_s; too_few_nodes=shrink goes on with fewer)"
            )
        if words != said:
            logger.warning("%s: waiting for others", words)
            said = words
        time.sleep(_WAIT_INTERVAL_S)


def account_goodput(run: RunDir, *, live: bool = False) -> Goodput:
    """Where the wall time of the run's training went; of a live run up to now, else to its last event."""
    return compute_goodput(run, now=time.time() if live else None)
