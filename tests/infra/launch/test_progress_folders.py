"""What jobs keep in their node's memory goes with them, or with the next job where they were killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from pathlib import Path

import pytest
from job_helpers import is_running, wait_for_pids
from test_agent import LEAVES, agent_of, shared_folder, start

from configs import progress
from infra.launch.base import JobHandle
from infra.launch.local import LocalLauncher
from infra.launch.progress_folders import kept_folder, remove_dead
from tests.waiting import wait_until


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(progress, "_SHARED_MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def test_a_folder_that_nobody_holds_is_removed(memory: Path, tmp_path: Path) -> None:
    dead = memory / "overland-progress-1"
    others = [memory / "overland-0", memory / "overland-progress-file"]
    dead.mkdir()
    (dead / "rank_00000").touch()
    others[0].mkdir()
    others[1].touch()
    link = memory / "overland-progress-link"
    link.symlink_to(others[0])
    with kept_folder("2", tmp_path) as held:
        assert not dead.exists()
        remove_dead()
        assert sorted(memory.iterdir()) == sorted([*others, link, held])
    assert not held.exists()


def test_a_folder_that_is_removed_while_it_is_taken_is_made_again(
    memory: Path, tmp_path: Path
) -> None:
    folder = memory / "overland-progress-3"
    folder.mkdir()
    remover = os.open(folder, os.O_RDONLY)
    fcntl.flock(remover, fcntl.LOCK_EX)
    seen: list[bool] = []

    def take() -> None:
        with kept_folder("3", tmp_path) as held:
            seen.append(held == folder and held.is_dir())

    taker = threading.Thread(target=take)
    taker.start()
    taker.join(0.3)
    assert seen == [], "it waits for who removes it"
    shutil.rmtree(folder)
    os.close(remover)
    taker.join(30)
    assert seen == [True]


@pytest.mark.slow
def test_what_a_killed_job_has_left_goes_with_the_next_one(tmp_path: Path) -> None:
    """As when Slurm kills all of a node: nothing of the job lives to remove it."""
    launcher = LocalLauncher()

    def begin(name: str) -> tuple[JobHandle, list[int]]:
        (tmp_path / name).mkdir()
        pids = tmp_path / name / "pids"
        handle = start(launcher, tmp_path / name, LEAVES, "0,0", str(pids))
        return handle, wait_for_pids(pids, 2)

    live, _ = begin("live")
    dead, ranks = begin("dead")
    agent = agent_of(ranks)
    supervisor = agent.parent()
    assert supervisor is not None
    supervisor.kill()
    wait_until(lambda: not any(map(is_running, [agent.pid, *ranks])), "the job's death")
    assert shared_folder(dead).is_dir()
    following, _ = begin("following")
    assert not shared_folder(dead).exists()
    assert shared_folder(live).is_dir()
    for handle in (live, following):
        launcher.cancel(handle, grace_s=0.0)
        assert not shared_folder(handle).exists()
