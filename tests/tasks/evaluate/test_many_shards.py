"""Ten thousand shards on the real claims: each has one holder, and what the dead held is free again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from evaluation_setup import REPOSITORY

from tasks.evaluate.claims import Claims, this_process

SHARDS = [f"task-{number:05d}" for number in range(10_000)]
OTHER = """
import sys
from pathlib import Path
from tasks.evaluate.claims import Claims, this_process
claims = Claims(Path(sys.argv[1]), this_process("other"))
names = sys.stdin.readline().split()
print("ready", flush=True)
print(" ".join(name for name in names if claims.take(name)), flush=True)
sys.stdin.read()
"""


def test_ten_thousand_shards_have_one_holder_each(tmp_path: Path) -> None:
    """Two processes begin at different ends, and meet."""
    mine = Claims(tmp_path, this_process("test"))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)],
        cwd=REPOSITORY,
        stdin=pipe,
        stdout=pipe,
        text=True,
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdin.write(" ".join(reversed(SHARDS)) + "\n")
        other.stdin.flush()
        assert other.stdout.readline() == "ready\n"
        taken = [name for name in SHARDS if mine.take(name)]
        others = other.stdout.readline().split()  # It lives on: what the dead hold is free again.
    assert other.returncode == 0
    assert taken and others
    assert sorted(taken + others) == SHARDS
    assert {path.name for path in tmp_path.glob("task-*")} == {f"{name}.0" for name in SHARDS}
    assert mine.live(SHARDS).keys() == set(taken)  # the other one has ended
    assert not mine.take(taken[0])
    assert mine.take(others[0])
    assert (tmp_path / f"{others[0]}.1").is_file()
