"""Shards without a model: names, cuts of mixed request types, claims, and wall times."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from evaluation_setup import REPOSITORY

from configs.errors import EvaluationError
from tasks.evaluate.claims import Claims, this_process
from tasks.evaluate.cutting import cut
from tasks.evaluate.forecast import Forecast
from tasks.evaluate.manifest import RequestRow
from tasks.evaluate.priors import Priors
from tasks.evaluate.shards import TaskRows
from tasks.evaluate.times import Done, covered_s


def rows(documents: int, *, sampled: bool = False) -> TaskRows:
    """Two log-likelihoods and a generation for each document, as SQuAD v2 asks."""
    settings = {"until": ["\n"], "do_sample": sampled}
    found = [
        RequestRow(document, "loglikelihood", index, 1, f"{document}{index}", ["a", "b"])
        for document in range(documents)
        for index in range(2)
    ]
    found += [
        RequestRow(document, "generate_until", 0, 1, f"{document}", ["a", settings])
        for document in range(documents)
    ]
    return TaskRows("task", found, "model")


def cuts_of(tasks: TaskRows, taken: list[tuple[int, int]], tmp_path: Path) -> list[tuple[int, int]]:
    forecast = Forecast(Priors(tmp_path / "priors.db"), "hf", 1e8)
    return sorted(c.rows for c in cut([(tasks, taken)], ["a", "b"], 1, forecast).shards)


def test_types_stand_apart_and_all_is_cut_once(tmp_path: Path) -> None:
    spans = cuts_of(rows(10), [], tmp_path)
    assert [spans[0][0], spans[-1][1]] == [0, 30]
    assert all(first[1] == second[0] for first, second in itertools.pairwise(spans))
    assert 20 in {stop for _, stop in spans}
    assert all(start % 2 == 0 for start, _ in spans if start < 20)
    assert len([start for start, _ in spans if start >= 20]) >= 4  # generation is most of the work


def test_what_is_taken_is_cut_around(tmp_path: Path) -> None:
    spans = cuts_of(rows(10), [(4, 8), (22, 30)], tmp_path)
    assert {row for start, stop in spans for row in range(start, stop)} == {
        *range(4), *range(8, 20), 20, 21,
    }  # fmt: skip


def test_sampled_answers_stay_together(tmp_path: Path) -> None:
    assert (20, 30) in cuts_of(rows(10, sampled=True), [], tmp_path)


def test_names_are_of_the_content() -> None:
    task = rows(4)
    name = task.name((0, 2))
    assert task.done([name, "task.000000-000002." + "0" * 24, "x"]) == {(0, 2): name}
    assert rows(6).name((0, 2)) == name
    assert TaskRows("task", task.rows, "other model").name((0, 2)) != name
    assert task.name((2, 4)) != name


def test_a_claim_of_the_dead_is_taken_and_one_of_the_living_is_not(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", CLAIMER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        claims = Claims(tmp_path, this_process("crew"))
        assert not claims.take("shard")
        other.kill()
    assert claims.take("shard")
    assert not claims.take("shard")


def test_a_shard_that_ends_workers_is_given_up(tmp_path: Path) -> None:
    for _ in range(3):
        argv = [sys.executable, "-c", CLAIMER, str(tmp_path)]
        subprocess.run(argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL, check=True)
    with pytest.raises(EvaluationError, match="was the end of 3 workers"):
        Claims(tmp_path, this_process("crew")).take("shard")
    assert Claims(tmp_path, this_process("a later crew")).take("shard")


CLAIMER = """
import sys
from pathlib import Path
from tasks.evaluate.claims import Claims, this_process
print(Claims(Path(sys.argv[1]), this_process("crew")).take("shard"), flush=True)
sys.stdin.read()
"""


def test_wall_time_counts_once() -> None:
    def done(start: float, end: float) -> Done:
        return Done(kind="shard", name="", worker="", started_at=start, ended_at=end)

    assert covered_s([done(1, 4), done(2, 3), done(3, 5), done(7, 8)]) == 5
    assert covered_s([done(4, 6), done(7, 9)], beside=[done(1, 5), done(8, 9)]) == 2
