"""Opening a run directory: checks, one live flow a stage; tracking and summary around a flow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from prefect.runtime import deployment, flow_run

from configs.checks import check_config, check_launchable
from configs.errors import ConfigError, InputError, RunDirectoryError
from configs.files import resolved, write_text
from configs.load import absolute_paths, dump_config, fixed_differences, load_config
from configs.rundir import RunDir, write_record
from configs.schema import RunConfig
from configs.writable import check_writable
from flows.locks import held, holds
from flows.show.progress import say
from flows.show.report import RunSummary, build_summary
from flows.site import check_site
from infra.track import resolve_tracking_uri, start_follower, tracking_state
from tasks.evaluate.task import check_tasks
from tasks.recover.task import account_goodput


def check_run(config: RunConfig) -> RunDir:
    """Everything about a config that can be known before anything starts.

    Raises InputError with one sentence. Creates nothing.
    """
    check_config(config)
    check_launchable(config)
    if config.evaluate.enabled:
        check_tasks(config.evaluate)
    run = RunDir(config.resolved_run_dir())
    _check_writable(run)
    return run


def _check_writable(run: RunDir) -> None:
    """The run directory is one or can become one: absent or empty, in a folder that can be written."""
    check_writable(run.path, name="run_dir", hint="choose another with run_dir=DIR")
    if run.path.is_dir() and not run.locks_dir.is_dir() and any(run.path.iterdir()):
        raise RunDirectoryError(
            f"run_dir {run.path} is not empty and holds no run: choose a new or an empty folder"
        )


def _check_same_run(run: RunDir, config: RunConfig) -> None:
    """Once training has begun, what shapes the loss curve stays as it was."""
    if not run.attempts() or not run.config_path.is_file():
        return
    differences = fixed_differences(load_config(run.config_path), config)
    if differences:
        key, old, new = differences[0]
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise RunDirectoryError(
            f"{run.path} holds a run with {key}={old}, this config says {new}{more}: "
            "set it back, or choose another run_dir=DIR"
        )


@contextmanager
def open_run(config: RunConfig, *stages: str) -> Iterator[RunDir]:
    """Take the run directory for `stages`; everything of a flow happens inside.

    Outermost, this checks the config, locks the stages against other live flows, and leaves the
    resolved config in the directory. A stage's flow that a larger flow of this process called finds
    all that done.

    Wrong input leaves nothing behind: a directory that did not exist before and holds no data set
    yet is removed again, unless another flow has begun to use it.
    """
    path = config.resolved_run_dir()
    if all(holds(RunDir(path), stage) for stage in stages):
        yield RunDir(path)
        return
    config = absolute_paths(config)  # Prefect's form and Python callers may give relative ones.
    run = check_run(config)
    check_site(config, *stages)
    made = [folder for folder in (run.path, *run.path.parents) if not folder.exists()]
    with ExitStack() as stack:
        for stage in stages:
            stack.enter_context(held(run, stage, wait=is_from_server(), say=say))
        try:
            _check_same_run(run, config)
            write_text(run.config_path, dump_config(config))
            yield run
        except InputError:
            used_by = {path.name for path in run.locks_dir.iterdir()}
            if made and run.manifest() is None and used_by <= set(stages):
                _remove(made)
            raise


def is_from_server() -> bool:
    """Whether a server has started this flow run: nobody looks who would start it again later.

    It waits for its run directory. So does one that is started anew because the server took its process
    for dead, as that may live, cut off from the server alone.
    """
    return bool(deployment.id)


def is_restarted() -> bool:
    """Whether the server has started this flow run anew because it took its process for dead."""
    return is_from_server() and (flow_run.run_count or 0) > 1


def _remove(made: list[Path]) -> None:
    """Remove the run directory, the first of `made`, and what was made above it for it alone."""
    shutil.rmtree(made[0])
    for folder in made[1:]:
        with suppress(OSError):  # Another run has moved in.
            folder.rmdir()


_tracked_here: set[Path] = set()


@contextmanager
def tracked(run: RunDir, config: RunConfig) -> Iterator[None]:
    """Have MLflow follow the run while the block runs, and at its end write the summary.

    For the outermost flow of this process; an inner one finds it done. MLflow that cannot keep up
    is said in the log and holds nothing up but the last `tracking.flush_timeout_s`.
    """
    if run.path in _tracked_here:
        yield
        return
    follower = None
    if config.tracking.enabled:
        follower = start_follower(run, config.tracking, prefect_flow_run_id=flow_run.id)
    _tracked_here.add(run.path)
    nothing_begun = False
    try:
        yield
    except InputError:
        nothing_begun = not run.attempts()
        raise
    finally:
        _tracked_here.discard(run.path)
        try:
            if not nothing_begun:
                write_record(run.summary_path, summarize(run, config))
        finally:
            if follower is not None and not follower.finish(config.tracking.flush_timeout_s):
                say(f"MLflow has not been told everything yet: `overland track {run.path}` does it")


def summarize(run: RunDir, config: RunConfig, *, failure: str | None = None) -> RunSummary:
    """The run's result out of what its directory holds now. `failure` says why the flow failed, where
    the directory does not."""
    attempts = run.attempts()
    record = attempts[-1].record() if attempts else None
    completed = record is not None and record.outcome == "completed"
    tracking = tracking_state(run) if config.tracking.enabled else None
    return build_summary(
        run,
        status="completed" if completed and failure is None else "failed",
        goodput=account_goodput(run),
        mlflow_run_id=tracking.mlflow_run_id if tracking else None,
        tracking_uri=resolve_tracking_uri(config.tracking, run)
        if config.tracking.enabled
        else None,
        failure=failure,
    )


def config_of(run_dir: Path) -> RunConfig:
    """The resolved config of an existing run directory."""
    run = RunDir(resolved(run_dir))
    if not run.config_path.is_file():
        raise ConfigError(f"{run_dir} is no run directory: it has no config.yaml")
    return load_config(run.config_path, [f"run_dir={json.dumps(str(run.path))}"])
