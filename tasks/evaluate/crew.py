"""The workers of one node, and the precursor that brings them the model: started, watched, replaced.

They are started at once, because what they import takes longest; each waits for one line on its
standard input, which says that the model is there and the plan is made. All of them end with the
process that started them, whatever it dies of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack
from types import TracebackType

from configs.errors import EXIT_OK, EvaluationError
from configs.rundir import EvaluationDir
from configs.schema import EvaluateConfig
from tasks.evaluate.claims import this_process
from tasks.evaluate.foreman import Foreman
from tasks.evaluate.given_up import EXIT_BEGIN_AGAIN, why_given_up
from tasks.evaluate.plan import EvaluationPlan, devices_of, name_on_node, worker_names
from tasks.evaluate.responses import Pending, shards_answered
from tasks.evaluate.stager import Stager
from tasks.evaluate.times import Done, error_path, record

_LOOK_S = 0.05
_LEAVE_S = 2.0
_SURVEY_S = 2.0
"""How often it is looked whether workers have come or gone, here and elsewhere."""
_USELESS_DEATHS = 5
"""Of each worker without a shard done between them: then something is wrong with all."""


class Crew:
    """The processes of one evaluation on this node; a context that ends all of them."""

    def __init__(self, evaluation: EvaluationDir, config: EvaluateConfig) -> None:
        self._evaluation = evaluation
        self._config = config
        self._me = this_process("")
        self._foreman: Foreman | None = None
        self._presence = ExitStack()
        self._stager = Stager(evaluation, config)
        self._workers: dict[str, subprocess.Popen[str]] = {}
        self._model_dir: str | None = None
        self._without_model: list[str] = []
        """Workers that were started while another precursor copied."""

    def __enter__(self) -> Crew:
        self._stager.start()
        for name in worker_names(self._config):
            self._workers[name] = self._start_worker(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._workers.values():
            process.kill()
            process.communicate()
        self._presence.close()
        self._stager.close()

    def go(self, plan: EvaluationPlan) -> None:
        """Wait for the model, then send the workers to work on the plan."""
        staged = self._stager.wait(self._config.timeout_s)
        self._model_dir = staged.path
        done = Done(
            kind="stage",
            name=staged.place,
            worker=f"crew-{self._me.name}",
            started_at=staged.started_at,
            ended_at=staged.ended_at,
        )
        record(self._evaluation, done)
        self._foreman = Foreman(self._evaluation, plan, self._config, self._me)
        names = [name_on_node(name) for name in self._workers]
        self._presence.enter_context(self._foreman.present(names))
        self._foreman.look()
        for process in self._workers.values():
            self._send_go(process)

    def attend(self, pending: Pending) -> None:
        """Wait until no shard is pending; workers and precursors that end meanwhile are replaced.

        Errors of a worker that are not of a shard end all: they would come again.
        """
        useless, last, next_look = 0, -1, time.monotonic() + _SURVEY_S
        while pending:
            ended = {name: p for name, p in self._workers.items() if p.poll() is not None}
            lost = {name: p for name, p in ended.items() if p.returncode != EXIT_OK}
            for name, process in lost.items():
                if process.returncode > 0 and process.returncode != EXIT_BEGIN_AGAIN:
                    raise EvaluationError(self._what_it_said(name))
                _say(f"worker {name} {_what_ended(process.returncode)}")
                count = len(shards_answered(self._evaluation))
                useless, last = (useless + 1 if count == last else 1), count
            if useless > _USELESS_DEATHS * len(self._workers):
                raise EvaluationError(self._why_useless())
            self._keep_staged()
            for name in lost:
                self._restart(name)
            if lost or time.monotonic() >= next_look:
                self._follow_plan(lost)
                next_look = time.monotonic() + _SURVEY_S
            time.sleep(_LOOK_S)
        self._let_workers_leave()

    def _keep_staged(self) -> None:
        """The model stays here while it is used."""
        if (staged := self._stager.look()) is not None:
            self._model_dir = staged.path
            for name in self._without_model:
                self._send_go(self._workers[name])
            self._without_model.clear()

    def _follow_plan(self, lost: Collection[str]) -> None:
        """Have the rest planned anew where that is due, and start workers that had left but are to do
        some of it."""
        assert self._foreman is not None
        wanted = self._foreman.look([name_on_node(name) for name in lost])
        for name, process in self._workers.items():
            if process.poll() == 0 and name_on_node(name) in wanted:
                self._restart(name)

    def _let_workers_leave(self) -> None:
        """They have nothing to do any more; one that only now loads the model is not waited for."""
        deadline = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline and any(p.poll() is None for p in self._workers.values()):
            time.sleep(_LOOK_S)

    def _restart(self, name: str) -> None:
        self._workers[name].communicate()
        self._workers[name] = self._start_worker(name)
        if self._stager.is_staged:
            self._send_go(self._workers[name])
        elif name not in self._without_model:
            self._without_model.append(name)

    def _why_useless(self) -> str:
        assert self._foreman is not None
        shards = [shard for _, shard in self._foreman.plan.shards()]
        if (said := why_given_up(self._evaluation, shards)) is not None:
            return f"no task can be answered; {said}"
        return (
            "workers are killed again and again before they have answered anything: see the job's log; "
            "it may be the node's memory"
        )

    def _what_it_said(self, name: str) -> str:
        try:
            return error_path(self._evaluation, name).read_text().strip()
        except FileNotFoundError:
            return f"worker {name} failed, see the job's log"

    def _start_worker(self, name: str) -> subprocess.Popen[str]:
        devices = devices_of(self._config)
        error_path(self._evaluation, name).unlink(missing_ok=True)
        environment = {"CUDA_VISIBLE_DEVICES": name.removeprefix("gpu") if devices else ""}
        if not devices:
            threads = str(self._config.cpu_threads)
            environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        argv = ["worker", str(self._evaluation.path), name, self._me.name, self._config.backend]
        return _start(argv, environment)

    def _send_go(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps({"model_dir": self._model_dir}) + "\n")
            worker.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which is seen where they are watched


def _start(argv: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    module, *arguments = argv
    return subprocess.Popen(
        [sys.executable, "-m", f"tasks.evaluate.{module}", *arguments],
        stdin=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    )


def _what_ended(exit_code: int) -> str:
    if exit_code == EXIT_BEGIN_AGAIN:
        return "could not answer a shard and is started anew"
    return f"was ended by signal {-exit_code}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
