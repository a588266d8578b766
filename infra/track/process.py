"""What flows use: start a follower beside a run, finish it, ask how far it is.

Nothing here imports MLflow or talks to a tracking server, so nothing here waits for one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from configs.errors import EXIT_OK, TrackingError
from configs.rundir import RunDir
from configs.schema import TrackingConfig
from infra.track.cursor import backlog, load_cursor
from infra.track.protocol import (
    CONFIG_VARIABLE,
    EXIT_TOLD_BY_ANOTHER,
    FINISH_WORD,
    FLOW_RUN_VARIABLE,
)

LOG_NAME = "follow.log"
_LOOK_INTERVAL_S = 1.0
_MAX_BACKOFF_S = 60.0

_log = logging.getLogger("infra.track")


@dataclass(frozen=True)
class TrackingState:
    """How far MLflow has been told about a run."""

    mlflow_run_id: str | None
    """The parent run, once it exists."""
    tracking_uri: str
    """Without credentials."""
    pending_events: int
    pending_records: int
    """Records (attempts, checkpoints, evaluations, ...) that are new or have changed."""
    last_error: str
    """Why the last try failed; empty: it did not."""

    @property
    def complete(self) -> bool:
        return not (self.pending_events or self.pending_records)


def tracking_state(run: RunDir) -> TrackingState | None:
    """What tracking/state.json and the run directory say now; None before tracking began."""
    cursor = load_cursor(run)
    if cursor is None:
        return None
    missing = backlog(run, cursor)
    return TrackingState(
        mlflow_run_id=cursor.mlflow_run_id,
        tracking_uri=cursor.tracking_uri,
        pending_events=missing.events,
        pending_records=missing.records,
        last_error=cursor.last_error,
    )


class Follower:
    """A follower process of this flow; one that dies before it is asked to finish is started again."""

    def __init__(self, run: RunDir, environment: Mapping[str, str]) -> None:
        self._run = run
        self._environment = environment
        self._process = self._start()
        self._finishing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="overland-follower", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        self._run.tracking_dir.mkdir(parents=True, exist_ok=True)
        with open(self._run.tracking_dir / LOG_NAME, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "infra.track.follow", str(self._run.path), "--stdin"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the flow, which then finishes its follower.
            )

    def _keep(self) -> None:
        """Until the end, start a new follower when one has died; each time wait longer before."""
        pause_s = _LOOK_INTERVAL_S
        while not self._finishing.wait(pause_s):
            if self._process.poll() is None:
                continue
            _log.warning(
                "the follower has ended with code %s and is started again",
                self._process.returncode,
            )
            pause_s = min(2.0 * pause_s, _MAX_BACKOFF_S)
            self._hang_up()
            try:
                self._process = self._start()
            except OSError:
                _log.warning("the follower cannot be started", exc_info=True)

    def finish(self, timeout_s: float) -> bool:
        """Have the rest told, and end the follower; whether everything is told, or another flow's
        follower sees to that.

        After `timeout_s` it is killed: what is missing is told by the next follower, or `catch_up`.
        One that somebody else killed is started once more.
        """
        self._finishing.set()
        self._keeper.join()
        deadline = time.monotonic() + timeout_s
        code = self._ask_to_finish(deadline)
        if code is not None and code < 0:
            self._process = self._start()
            code = self._ask_to_finish(deadline)
        return code in (EXIT_OK, EXIT_TOLD_BY_ANOTHER)

    def _ask_to_finish(self, deadline: float) -> int | None:
        """The follower's exit code; None when it had to be killed at the deadline."""
        self._hang_up(FINISH_WORD + b"\n")
        try:
            return self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._process.kill()
            self._process.wait()

    def _hang_up(self, last_word: bytes = b"") -> None:
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # It has just died: its exit code tells.
            pipe.write(last_word)
            pipe.flush()
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def start_follower(
    run: RunDir, config: TrackingConfig, *, prefect_flow_run_id: str | None = None
) -> Follower:
    """Start the process that tells MLflow about `run` while it goes on. Its log: tracking/follow.log."""
    return Follower(run, _environment(config, prefect_flow_run_id))


def catch_up(run: RunDir, config: TrackingConfig) -> None:
    """Tell MLflow everything that it has missed. TrackingError says why it could not be told."""
    result = subprocess.run(
        [sys.executable, "-m", "infra.track.follow", str(run.path), "--once"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_environment(config, None),
        text=True,
        check=False,
    )
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        why = lines[-1] if lines else f"the follower ended with code {result.returncode}"
        raise TrackingError(f"{run.path} could not be tracked: {why}")


def _environment(config: TrackingConfig, prefect_flow_run_id: str | None) -> dict[str, str]:
    environment = {**os.environ, CONFIG_VARIABLE: config.model_dump_json()}
    flow_run_id = prefect_flow_run_id or os.environ.get("PREFECT__FLOW_RUN_ID")
    if flow_run_id:
        environment[FLOW_RUN_VARIABLE] = flow_run_id
    return environment
