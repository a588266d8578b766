"""Whose jobs they are is checked before any is submitted."""

from __future__ import annotations

import base64
import getpass
import json
import os
from pathlib import Path

import pytest

from infra.launch.slurm_token import owner_of
from infra.launch.slurm_user import user_problem

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask what others may")


def token(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


@pytest.mark.parametrize(
    ("claims", "owner"),
    [({"exp": 1, "sun": "alice"}, "alice"), ({"exp": 1}, None), ([], None), ({"sun": 7}, None)],
)
def test_a_token_says_whose_it_is(claims: object, owner: str | None) -> None:
    assert owner_of(token(claims)) == owner


def test_a_user_that_nobody_knows_needs_a_token_of_their_own(tmp_path: Path) -> None:
    problem = user_problem("nosuchuser", "root", tmp_path)
    assert problem is not None
    assert problem.startswith("launcher.slurm.user: 'nosuchuser' is no user of this machine")
    assert "'root'" in problem
    assert user_problem("nosuchuser", "nosuchuser", tmp_path) is None
    assert user_problem("nosuchuser", None, tmp_path) is None


def test_who_runs_the_flow_can_write_where_it_does(tmp_path: Path) -> None:
    assert user_problem(getpass.getuser(), "root", tmp_path) is None


@as_root
def test_a_user_who_cannot_write_to_the_run_directory_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "not_yet"):
        problem = user_problem("nobody", "root", folder)
        assert problem is not None and "'nobody', who cannot write to" in problem
    assert user_problem("nobody", "root", None) is None


@as_root
def test_a_user_who_can_write_there_is_not(tmp_path: Path) -> None:
    # pytest's folders are closed to others, so beside them.
    folder = Path("/dev/shm") / f"overland-test-{os.getpid()}"
    folder.mkdir()
    try:
        folder.chmod(0o777)
        assert user_problem("nobody", "root", folder) is None
    finally:
        folder.rmdir()
