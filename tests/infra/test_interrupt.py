"""SIGTERM that leaves a block as an exception, and only that block."""

from __future__ import annotations

import os
import signal

import pytest

from infra.interrupt import exit_on_sigterm


def test_sigterm_leaves_the_block_with_its_code() -> None:
    with pytest.raises(SystemExit) as caught, exit_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 143


def test_the_former_handler_is_put_back() -> None:
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="inside"), exit_on_sigterm(code=0):
        assert signal.getsignal(signal.SIGTERM) is not former
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGTERM) is former
