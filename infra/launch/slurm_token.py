"""The token that slurmrestd asks for: where it comes from, and when it must be had anew.

It is a secret: it is in no message, log or representation.
"""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from infra.launch.slurm_errors import SlurmTokenError

_COMMAND_TIMEOUT_S = 30.0
_EARLY_S = 60.0
"""A token is had anew this long before it expires, so that none expires on its way."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class TokenSource:
    """Gives the token as of now; may be used by several threads."""

    def __init__(self, read: Callable[[], str], where: str) -> None:
        self._read, self.where = read, where
        self._lock = threading.Lock()
        self._token = ""

    def token(self) -> str:
        """The token; read again when it is about to expire."""
        with self._lock:
            if not self._token or _expires_within(self._token, 0.0):
                self._token = self._fresh()
            elif _expires_within(self._token, _EARLY_S):
                with suppress(SlurmTokenError):  # The next call tries again; this one still holds.
                    self._token = self._fresh()
            return self._token

    def forget(self) -> None:
        """Have it read again: the server does not accept it."""
        with self._lock:
            self._token = ""

    def _fresh(self) -> str:
        token = self._read().strip().removeprefix("SLURM_JWT=")
        if token.count(".") != 2 or any(c.isspace() for c in token):
            raise SlurmTokenError(
                f"{self.where} holds no token: the output of `scontrol token` is one"
            )
        if _expires_within(token, 0.0):
            raise SlurmTokenError(
                f"the token of {self.where} has expired: get a new one with `scontrol token lifespan=86400`"
            )
        return token


def token_source(file: Path | None, command: Sequence[str]) -> TokenSource:
    """From a file, or else from a command."""
    if file is not None:
        return TokenSource(lambda: _read_file(file), str(file))
    if command:
        return TokenSource(lambda: _run(command), f"the command {command[0]}")
    raise SlurmTokenError("there is no token: give launcher.slurm.token_file or token_command")


def _read_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no plain file"
            raise SlurmTokenError(f"{path} is {kind}: name a file that holds a token")
        if mode & _OTHERS:
            raise SlurmTokenError(
                f"{path} can be read by others (mode {stat.S_IMODE(mode):o}): chmod 600 {path}"
            )
        return path.read_text(errors="replace")
    except FileNotFoundError:
        raise SlurmTokenError(
            f"{path}, which should hold a token, does not exist: "
            f"`(umask 077; scontrol token lifespan=86400 > {path})` makes it"
        ) from None
    except OSError as error:
        words = error.strerror or "it gives an error"
        raise SlurmTokenError(f"the token in {path} cannot be read: {words}") from None


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmTokenError(
            f"the token command {command[0]} does not end within {_COMMAND_TIMEOUT_S:g} s"
        ) from None
    except OSError as error:
        words = error.strerror or "it gives an error"
        raise SlurmTokenError(f"the token command {command[0]} cannot be run: {words}") from None
    if done.returncode:
        # Its output may hold the token.
        raise SlurmTokenError(f"the token command {command[0]} ended with {done.returncode}")
    return done.stdout


def expires_at(token: str) -> float | None:
    """When it says that it expires; None of one without an end, or that cannot be read (which is not
    ours to judge)."""
    try:
        return float(_claims(token)["exp"])
    except (ValueError, KeyError, TypeError):
        return None


def owner_of(token: str) -> str | None:
    """The user whose token it says that it is, as Slurm writes it; None of one that does not say so."""
    try:
        owner = _claims(token)["sun"]
    except (ValueError, KeyError, TypeError):
        return None
    return owner if isinstance(owner, str) else None


def _claims(token: str) -> dict[str, Any]:
    """ValueError for what is no token's middle part; nobody has checked its signature."""
    body = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    if not isinstance(claims, dict):
        raise ValueError("no claims")
    return claims


def _expires_within(token: str, seconds: float) -> bool:
    end = expires_at(token)
    return end is not None and end - time.time() < seconds
