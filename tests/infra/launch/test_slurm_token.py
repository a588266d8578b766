"""The token: where it comes from, when it is had anew, and that nobody sees it."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path

import pytest

from infra.launch.slurm_errors import SlurmTokenError
from infra.launch.slurm_token import token_source


def make_token(lifespan_s: float | None, name: str = "a") -> str:
    claims = {"sun": "me"} if lifespan_s is None else {"exp": time.time() + lifespan_s}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"{name}.{body}.signature"


def token_file(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_from_a_file(tmp_path: Path) -> None:
    token = make_token(3600)
    assert token_source(token_file(tmp_path, token + "\n"), ()).token() == token


def test_the_output_of_scontrol_is_right_as_it_is(tmp_path: Path) -> None:
    token = make_token(None)
    assert token_source(token_file(tmp_path, f"SLURM_JWT={token}\n"), ()).token() == token


def test_from_a_command() -> None:
    token = make_token(3600)
    command = (sys.executable, "-c", f"print('SLURM_JWT={token}')")
    assert token_source(None, command).token() == token


def test_read_again_before_it_expires_and_when_it_is_refused(tmp_path: Path) -> None:
    path = token_file(tmp_path, make_token(30, "first"))
    source = token_source(path, ())
    assert source.token().startswith("first")
    second = make_token(3600, "second")
    path.write_text(second)
    assert source.token() == second
    path.write_text(make_token(3600, "third"))
    assert source.token() == second
    source.forget()
    assert source.token().startswith("third")


def test_one_that_still_holds_is_kept_while_there_is_no_new_one(tmp_path: Path) -> None:
    path = token_file(tmp_path, make_token(30, "first"))
    source = token_source(path, ())
    first = source.token()
    path.write_text("")  # as while it is being renewed
    assert source.token() == first
    path.write_text(make_token(3600, "second"))
    assert source.token().startswith("second")


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (make_token(3600), 0o640, r"can be read by others \(mode 640\): chmod 600"),
        (make_token(-5), 0o600, r"the token of .*token has expired: get a new one"),
        ("secret words", 0o600, r"token holds no token"),
        ("", 0o600, r"token holds no token"),
    ],
    ids=["readable", "expired", "words", "empty"],
)
def test_what_is_wrong_is_said_without_the_token(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    source = token_source(token_file(tmp_path, text, mode), ())
    with pytest.raises(SlurmTokenError, match=words) as caught:
        source.token()
    assert not text or text not in str(caught.value)
    assert "signature" not in repr(source)


def test_a_missing_file_and_failing_commands(tmp_path: Path) -> None:
    with pytest.raises(SlurmTokenError, match=r"none, which should .*does not exist: .*umask 077"):
        token_source(tmp_path / "none", ()).token()
    with pytest.raises(SlurmTokenError, match=f"{tmp_path} is a folder: name a file"):
        token_source(tmp_path, ()).token()
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SlurmTokenError, match="pipe is no plain file"):
        token_source(tmp_path / "pipe", ()).token()
    with pytest.raises(SlurmTokenError, match="cannot be read: Not a directory"):
        token_source(token_file(tmp_path, "") / "token", ()).token()
    with pytest.raises(SlurmTokenError, match=r"cannot be run: No such file or directory$"):
        token_source(None, ("/no/such/program",)).token()
    failing = (sys.executable, "-c", "import sys; print('a.b.secret'); sys.exit(3)")
    with pytest.raises(SlurmTokenError, match="ended with 3") as caught:
        token_source(None, failing).token()
    assert "secret" not in str(caught.value)
    with pytest.raises(SlurmTokenError, match="there is no token"):
        token_source(None, ())
