"""The follower: a process that reads a run directory and tells MLflow what is new.

    python -m infra.track.follow RUN_DIR [--once]

It is the only one that talks to MLflow about the run (flock on tracking/lock), so a tracking server
that is down or slow holds up nothing else. What was missed is told later, from the run directory.

With --once it tells everything there is and ends: exit code 0, or 1 with one sentence when not all
could be told. Otherwise it follows until it is stopped. A flow starts it with --stdin: the word
`finish` there makes it tell the rest and end; stdin closed without the word means that the flow
died, and the follower ends after one more try.

Reads the run directory; writes tracking/state.json. The TrackingConfig comes as JSON in the
environment (a URI may hold a password, and arguments show in `ps`), else from config.yaml.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import math
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import EXIT_OK, EXIT_RUN_FAILED, OverlandError, RunDirectoryError, TrackingError
from configs.files import file_lock, resolved
from configs.load import load_config
from configs.rundir import RunDir
from configs.schema import TrackingConfig
from infra.track.cursor import Cursor, fresh_cursor, load_cursor, open_cursor
from infra.track.errors import TrackingRefusedError
from infra.track.protocol import (
    CONFIG_VARIABLE,
    EXIT_TOLD_BY_ANOTHER,
    FINISH_WORD,
    FLOW_RUN_VARIABLE,
)
from infra.track.uris import artifact_location, resolve_tracking_uri, strip_credentials

if TYPE_CHECKING:
    from infra.track.view import View

_POLL_S = 1.0
_EVENTS_INTERVAL_S = 5.0
"""Metrics are pushed this often: each push costs CPU that training may want."""
_MAX_BACKOFF_S = 30.0
_MAX_BACKOFF_AT_END_S = 2.0
_LOCK_WAIT_AT_END_S = 5.0
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # The loop here retries, and can tell.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_CONFIGURE_LOGGING": "false",  # Its records pass our formatter, which hides passwords.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

_log = logging.getLogger("infra.track")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.track.follow")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--once", action="store_true", help="tell what there is, and end")
    parser.add_argument("--stdin", action="store_true", help="a flow says `finish` on stdin")
    options = parser.parse_args(arguments)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _set_up_logging()
    os.nice(10)
    run = RunDir(resolved(options.run_dir))
    try:
        if options.once:
            _tell_once(run, _config(run))
            return EXIT_OK
        return _Follower(run, _config(run), Flow(0 if options.stdin else None)).follow()
    except OverlandError as error:
        print(strip_credentials(str(error)), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_RUN_FAILED
    except Exception:
        _log.exception("the follower failed")  # Through the formatter: without credentials.
        return EXIT_RUN_FAILED


class _Formatter(logging.Formatter):
    """Log lines and tracebacks without credentials."""

    def format(self, record: logging.LogRecord) -> str:
        return strip_credentials(super().format(record))


def _set_up_logging() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    _log.setLevel(logging.INFO)


def _config(run: RunDir) -> TrackingConfig:
    given = os.environ.get(CONFIG_VARIABLE)
    if given is not None:
        return TrackingConfig.model_validate_json(given)
    if not run.config_path.is_file():
        raise RunDirectoryError(f"{run.path} is no run directory: it has no config.yaml")
    return load_config(run.config_path).tracking


def _tags() -> dict[str, str]:
    """Tags of the parent run that the run directory does not tell."""
    tags = {"overland.version": importlib.metadata.version("overland")}
    if flow_run_id := os.environ.get(FLOW_RUN_VARIABLE):
        tags["prefect.flow_run_id"] = flow_run_id
    return tags


def _connect(run: RunDir, config: TrackingConfig) -> tuple[View, Cursor]:
    """MLflow's view of the run, told from where the cursor stands (if MLflow still has the run)."""
    from infra.track.server import Server  # Imports MLflow: two seconds.
    from infra.track.view import View

    uri = resolve_tracking_uri(config, run)
    cursor = open_cursor(run, uri, config.experiment)
    server = Server(uri, artifact_location(uri, run))
    if cursor.mlflow_run_id is not None and not server.is_active(cursor.mlflow_run_id):
        _log.warning("MLflow has lost run %s: everything is told again", cursor.mlflow_run_id)
        cursor = fresh_cursor(run, uri, config.experiment)
    return View(run, server, cursor, _tags()), cursor


def _tell_once(run: RunDir, config: TrackingConfig) -> None:
    """Tell everything there is now. Raises TrackingError when not all could be told."""
    with file_lock(_lock_path(run), blocking=False) as held:
        if not held:
            raise TrackingError(f"{run.path} is being tracked by a live run: nothing is left to do")
        view, cursor = _connect(run, config)
        refusals = view.update()
        cursor.last_error = refusals[0] if refusals else ""
        cursor.save(run)
    if refusals:
        raise TrackingError("; ".join(refusals))


def _lock_path(run: RunDir) -> Path:
    return run.tracking_dir / "lock"


class Flow:
    """What the flow that started this process says on a pipe."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._said = b""
        self.gone = False

    @property
    def finished(self) -> bool:
        return FINISH_WORD in self._said

    @property
    def over(self) -> bool:
        """The flow has said its word, or died."""
        return self.finished or self.gone

    def listen(self, timeout_s: float) -> None:
        """Wait until the flow says something, at most `timeout_s`."""
        if self._descriptor is None or self.over:
            time.sleep(timeout_s)
            return
        readable, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if readable:
            said = os.read(self._descriptor, 100)
            self._said += said
            self.gone = not said and not self.finished


class _Follower:
    """Follows one run directory until its flow is over."""

    def __init__(self, run: RunDir, config: TrackingConfig, flow: Flow) -> None:
        self._run = run
        self._config = config
        self._flow = flow
        self._view: View | None = None
        self._cursor: Cursor | None = None
        self._failures = 0
        self._unreachable = False
        self._events_told_at = 0.0

    def follow(self) -> int:
        with self._lock() as held:
            if not held:
                _log.info("another flow's follower tells MLflow about this run")
                return EXIT_TOLD_BY_ANOTHER
            while True:
                over = self._flow.over
                told = self._tell(last=over)
                if over and (told or self._flow.gone or not self._unreachable):
                    return EXIT_OK if told else EXIT_RUN_FAILED
                self._flow.listen(self._delay_s())

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Wait for another flow's follower on this directory; False: it still is at it at the end."""
        deadline = math.inf
        while True:
            with file_lock(_lock_path(self._run), blocking=False) as held:
                if held or time.monotonic() > deadline:
                    yield held
                    return
            self._flow.listen(_POLL_S)
            if self._flow.over and deadline == math.inf:
                deadline = time.monotonic() + _LOCK_WAIT_AT_END_S

    def _delay_s(self) -> float:
        longest_s = _MAX_BACKOFF_AT_END_S if self._flow.over else _MAX_BACKOFF_S
        return min(_POLL_S * 2.0 ** min(self._failures, 10), longest_s)

    def _tell(self, *, last: bool) -> bool:
        """One pass; whether MLflow was told everything that was due."""
        self._unreachable = False
        try:
            if self._view is None:
                view, self._cursor = _connect(self._run, self._config)
                view.reopen()
                self._view = view
            refusals = self._update(self._view, last=last)
        except TrackingRefusedError as error:
            refusals = [str(error)]
        except (TrackingError, OSError) as error:  # OSError: the run directory, like a full disk.
            self._unreachable = True
            refusals = [strip_credentials(str(error))]
        self._note(refusals)
        return not refusals

    def _update(self, view: View, *, last: bool) -> list[str]:
        now = time.monotonic()
        events = last or now - self._events_told_at >= _EVENTS_INTERVAL_S
        refusals = view.update(events=events, summary=last)
        if events:
            self._events_told_at = now
        if last:
            clean = self._flow.finished and not self._run.attempts()
            view.end_without_summary(time.time(), status="FINISHED" if clean else "KILLED")
        return refusals

    def _note(self, refusals: list[str]) -> None:
        """Keep the error, or its end, where people look: the log and the state."""
        error = refusals[0] if refusals else ""
        self._failures = self._failures + 1 if refusals else 0
        cursor = self._cursor or load_cursor(self._run)
        if cursor is None:
            uri = resolve_tracking_uri(self._config, self._run)
            cursor = open_cursor(self._run, uri, self._config.experiment)
        if error != cursor.last_error:
            _log.warning("%s", error) if error else _log.info("MLflow is told everything again")
            cursor.last_error = error
            try:
                cursor.save(self._run)
            except OSError as problem:
                _log.warning("tracking/state.json cannot be written: %s", problem)


if __name__ == "__main__":
    sys.exit(main())
