"""What starts a distributed job's ranks on a node: torchrun, with three more abilities.

    python -m infra.launch.agent TORCHRUN'S ARGUMENTS...

- SIGTERM and SIGUSR1 are handed on to the ranks, which may end in their own time: torchrun would kill
  them after 30 s, in the middle of a save. Whoever wants an end after all sends SIGKILL.
- It exits with EXIT_CONTINUE when that is what the ranks exited with.
- It answers requests for stacks (:mod:`infra.launch.stacks`), and keeps the folder in the node's memory
  in which ranks say where they are (:mod:`infra.launch.progress_folders`).

The signals are blocked here and taken by a thread that waits for them, so it makes no difference which
handlers torch's version installs. Ranks are started through :mod:`infra.launch.leash`, which lets
SIGTERM through again; SIGUSR1 waits until the rank says that it can take it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from configs.errors import EXIT_CONTINUE
from configs.progress import PROGRESS_VARIABLE, TRACES_VARIABLE
from infra.launch.processes import JOB_DIR_VARIABLE, JOB_ID_VARIABLE
from infra.launch.progress_folders import kept_folder

FORWARDED = {signal.SIGTERM, signal.SIGUSR1}
_RETRY_S = 0.1
_LEAVE_TIMEOUT_S = 120.0
"""How long other ranks may take to leave after the first one that wants to be continued."""
_CLOSE_GRACE_S = 5.0
"""How long they may live on after one that failed: they can only wait for it in vain."""
_TRACE_BUFFER_SIZE = "2000"

logger = logging.getLogger("infra.launch.agent")


def main(arguments: list[str]) -> int:
    """Run the ranks to their end; returns the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _start_thread(hand_on_signals)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with _kept_folder() as folder:
        if folder is not None:
            _start_thread(answer_requests, Path(os.environ[JOB_DIR_VARIABLE]), folder)
        close_with_care()
        try:
            run_torchrun(arguments)
        except ChildFailedError as error:
            if {f.exitcode for f in error.failures.values()} != {EXIT_CONTINUE}:
                raise
            logger.warning("the ranks were asked to stop and want to be continued")
            return EXIT_CONTINUE
    return 0


def run_torchrun(arguments: list[str]) -> None:
    """What `torchrun` does, with its report of a failure."""
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.run import parse_args, run

    record(run)(parse_args(arguments))  # type: ignore[no-untyped-call]


def local_ranks() -> dict[int, psutil.Process]:
    """The ranks that this process has started and that have not been waited for yet."""
    found: dict[int, psutil.Process] = {}
    for child in psutil.Process().children():
        try:
            rank = child.environ().get("RANK", "")
        except psutil.Error:
            continue
        if rank.isdigit():
            found[int(rank)] = child
    return found


# --- signals --------------------------------------------------------------------------------------


def hand_on_signals() -> None:
    """Hand on what arrives, also what arrived before there were ranks; never returns."""
    waiting: set[signal.Signals] = set()
    while True:
        info = signal.sigtimedwait(FORWARDED, _RETRY_S) if waiting else None
        if info is not None or not waiting:
            waiting.add(signal.Signals(info.si_signo if info else signal.sigwait(FORWARDED)))
        ranks = local_ranks()
        for number in sorted(waiting):
            for process in ranks.values():
                _send(process, number)
        if ranks:
            logger.warning("%s goes to %d ranks", "/".join(s.name for s in waiting), len(ranks))
            waiting.clear()
        elif signal.SIGTERM in waiting:
            _end_myself()


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _end_myself() -> None:
    """There is nothing to save without ranks: let SIGTERM do what it does."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_RETRY_S)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def close_with_care() -> None:
    """Change how torchrun ends the other ranks once one has ended in any way but well.

    It would give them 30 s, whether they need a moment to leave as the first did, or hang on a
    collective with one that is no more.
    """
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    close = SubprocessContext.close

    def careful(context: Any, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        _wait_while_leaving([h.proc for h in context.subprocess_handlers.values()])
        close(context, death_sig, int(min(timeout, _CLOSE_GRACE_S)))

    SubprocessContext.close = careful  # type: ignore[method-assign, assignment]


def _wait_while_leaving(processes: list[Any]) -> None:
    deadline = time.monotonic() + _LEAVE_TIMEOUT_S
    while time.monotonic() < deadline:
        codes = {process.poll() for process in processes}
        if None not in codes or EXIT_CONTINUE not in codes or codes - {None, 0, EXIT_CONTINUE}:
            return
        time.sleep(_RETRY_S)


# --- what ranks tell ------------------------------------------------------------------------------


@contextmanager
def _kept_folder() -> Iterator[Path | None]:
    """The folder for the ranks' progress, while the job runs; None outside of a launcher's job."""
    job_id, job_dir = os.environ.get(JOB_ID_VARIABLE), os.environ.get(JOB_DIR_VARIABLE)
    if not job_id or not job_dir:
        yield None
        return
    from configs.stacks import STACKS_FOLDER

    traces = Path(job_dir) / STACKS_FOLDER
    traces.mkdir(exist_ok=True)
    with kept_folder(job_id, Path(job_dir)) as folder:
        set_trace_variables(os.environ, folder, traces)
        yield folder


def set_trace_variables(environment: MutableMapping[str, str], folder: Path, traces: Path) -> None:
    """Have ranks keep their progress, and torch its record of collectives, and tell where they go.

    What the user has set stays. Old versions of torch know other names, of which new ones warn, and
    keep no record unless they are told to.
    """
    import torch._C._distributed_c10d as c10d

    from infra.launch.stacks import NCCL_PIPE_PREFIX

    environment[PROGRESS_VARIABLE] = str(folder)
    environment[TRACES_VARIABLE] = str(traces)
    file = "TORCH_FR_DUMP_TEMP_FILE"
    if not hasattr(c10d, "_dump_fr_trace_json"):
        file = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
        environment.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", _TRACE_BUFFER_SIZE)
    environment.setdefault(file, str(traces / "nccl_trace_rank_"))
    environment.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    environment.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(folder / NCCL_PIPE_PREFIX))


def answer_requests(job_dir: Path, folder: Path) -> None:
    """Answer requests for stacks for ever; an error is said and does not end it."""
    from infra.launch import stacks

    while True:
        try:
            stacks.answer_requests(job_dir, folder, local_ranks)
        except Exception:
            logger.exception("a request for stacks could not be answered")
            time.sleep(stacks.REQUEST_CHECK_S)


def _start_thread(target: Any, *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, name=target.__name__, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
