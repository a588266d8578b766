"""A process that dies with its parent, whatever its parent dies of. Linux only.

Run as a script, `python leash.py ARGUMENTS...` becomes `python -u ARGUMENTS...` on such a leash:
the agent's torchrun starts its ranks this way, so they do not outlive one that was killed. As a script
it finds itself by path and imports nothing of Overland, so it works in any working directory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61


def die_with_parent(parent_pid: int | None = None) -> None:
    """Have the kernel SIGKILL this process when the thread that started it ends; survives exec.

    With `parent_pid`, a parent that died before this call is noticed too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def let_parent_look() -> None:
    """Let the parent, and what it starts, read this process's stacks where the kernel (Yama) would
    let only an ancestor do it; survives exec. Kernels without Yama refuse, and need no permission."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, os.getppid(), 0, 0, 0)


if __name__ == "__main__":
    die_with_parent()
    let_parent_look()
    # The agent has these blocked. SIGUSR1 stays so until the program can take it: it would end it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])  # noqa: S606
