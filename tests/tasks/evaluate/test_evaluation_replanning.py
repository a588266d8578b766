"""Workers and nodes that come and go in mid-inference: the rest is planned anew, and nothing done twice."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from evaluation_setup import REPOSITORY, prepare_evaluation, stage_command, write_heldout
from test_inference_resume import done

from configs.node import NODE_VARIABLE
from configs.rundir import EvaluationDir, RunDir, read_record
from tasks.evaluate.claims import Claims, this_process
from tasks.evaluate.live_plan import LivePlan, Rest, live_plan_path, plan_rest
from tasks.evaluate.plan import Answering, EvaluationPlan, ShardPlan, TaskPlan, read_plan
from tasks.evaluate.responses import Inferred, read_responses
from tasks.evaluate.schedule_types import Worker
from tasks.evaluate.times import Done, read_times
from tasks.evaluate.turns import Turns
from tests.waiting import wait_until


def a_plan(tasks: dict[str, tuple[int, float, float]]) -> EvaluationPlan:
    """Of each task: how many shards, how long each is expected to take, and its metric."""
    planned = []
    for name, (count, expected_s, metric_s) in tasks.items():
        shards = [
            ShardPlan(
                name=f"{name}.{at}", request_type="loglikelihood", start=at, stop=at + 1,
                start_bytes=0, stop_bytes=0, responses=1, expected_s=expected_s, worker="w",
            )
            for at in range(count)
        ]  # fmt: skip
        task = TaskPlan(
            task=name, target=name, file=name, documents=count, requests=count, num_fewshot=0,
            requests_sha256="", metric_s=metric_s, shards=shards,
        )  # fmt: skip
        planned.append(task)
    answering = Answering(
        backend="hf", device="cpu", dtype="float32", batch_size=1, cpu_threads=1, lm_eval_version=""
    )
    return EvaluationPlan(
        step=0, model_sha256="", inputs_sha256="", targets=list(tasks), left_out={}, tasks=planned,
        order=[s.name for t in planned for s in t.shards], limit=None, num_fewshot=None,
        answering=answering, bootstrap_iterations=0, seeds={},
    )  # fmt: skip


def rest_of(plan: EvaluationPlan, **changes: object) -> Rest:
    values = {
        "left": plan.order, "under_way": {}, "scored": [], "times": [], "cpu_cores": 2,
        "workers": [Worker("a-gpu0", "a"), Worker("b-gpu0", "b")],
    }  # fmt: skip
    return Rest(plan=plan, **(values | changes))  # type: ignore[arg-type]


def test_what_is_left_is_given_to_those_that_are_there() -> None:
    plan = a_plan({"long": (10, 6.0, 0.0), "short": (10, 2.0, 30.0)})
    left = [name for name in plan.order if name not in ("long.0", "long.1")]
    times = [Done(kind="shard", name="long.0", worker="a-gpu0", started_at=0.0, ended_at=12.0)]
    workers = [Worker("a-gpu0", "a"), Worker("b-gpu0", "b", ready_s=20.0)]
    rest = rest_of(plan, left=left, times=times, workers=workers)
    live = plan_rest(rest, None, "")
    assert sorted(work.shard for work in live.shards) == sorted(left)
    # All takes twice as long as expected: 8 x 12 s and 10 x 4 s, and the second begins 20 s later.
    assert {round(work.end_s - work.start_s) for work in live.shards} == {12, 4}
    assert min(work.start_s for work in live.shards if work.worker == "b-gpu0") == 20.0
    assert live.infer_end_s <= (8 * 12 + 10 * 4 + 20) / 2 + 12
    # The task with the long metric is answered first, so that the metric lies beside inference.
    assert max(work.end_s for work in live.shards if work.task == "short") < live.infer_end_s
    (metric,) = live.metrics
    assert metric.task == "short"
    again = plan_rest(rest_of(plan, left=left[-1:], times=times), live, "b-gpu0 is gone")
    assert [(r.why, r.infer_end_s) for r in again.earlier] == [("b-gpu0 is gone", live.infer_end_s)]


def test_ten_thousand_shards_are_planned_again_with_their_claims(tmp_path: Path) -> None:
    plan = a_plan({f"task{at}": (200, 1.0 + at, 5.0) for at in range(50)})
    workers = [Worker(f"w{at}", "") for at in range(256)]
    live = plan_rest(rest_of(plan, workers=workers), None, "")
    assert len(live.shards) == 10_000
    assert len({work.shard for work in live.shards}) == 10_000
    total_s = sum(200 * (1.0 + at) for at in range(50))
    assert live.infer_end_s <= total_s / 256 + 50.0
    claims = Claims(tmp_path, this_process("crew", "w0"))
    assert claims.take("task0.0")
    found = claims.live({"task0.0", "task0.1"})
    assert [(shard, claim.holder.worker) for shard, claim in found.items()] == [("task0.0", "w0")]


def test_a_worker_follows_the_newest_plan(tmp_path: Path) -> None:
    plan = a_plan({"task": (6, 1.0, 0.0)})
    evaluation = EvaluationDir(tmp_path, 0)
    two = plan_rest(rest_of(plan), None, "")
    live_plan_path(evaluation).write_text(two.model_dump_json())
    turns = iter(Turns(evaluation, plan, "b-gpu0"))
    own = [work.shard for work in two.shards if work.worker == "b-gpu0"]
    assert next(turns)[1].name == own[0]
    alone = plan_rest(rest_of(plan, left=["task.5", "task.3"]), two, "others have come")
    live_plan_path(evaluation).unlink()
    live_plan_path(evaluation).write_text(alone.model_dump_json())
    assert {shard.name for _, shard in turns} == {"task.5", "task.3"}


@contextmanager
def crew(run: RunDir, node: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, NODE_VARIABLE: node}
    process = subprocess.Popen(stage_command("infer", run), cwd=REPOSITORY, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def worker_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    found = [
        child
        for child in psutil.Process(process.pid).children()
        if "tasks.evaluate.worker" in child.cmdline()
    ]
    (worker,) = found
    return worker


def live_plan(evaluation: EvaluationDir) -> LivePlan:
    live = read_record(live_plan_path(evaluation), LivePlan)
    assert live is not None
    return live


def has_claimed(evaluation: EvaluationDir, node: str) -> bool:
    """Whether a worker of the node, alive, is at a shard that is not done."""
    claims = Claims(evaluation.claims_dir, this_process("test"))
    left = set(read_plan(evaluation).order) - {p.stem for p in done(evaluation)}
    return any(c.holder.node == node for c in claims.live(left).values())


def stopped_in_a_shard(
    evaluation: EvaluationDir, process: subprocess.Popen[bytes], node: str
) -> psutil.Process:
    """The crew's worker, stopped while it computes a shard."""
    while True:
        wait_until(lambda: has_claimed(evaluation, node), "a claim")
        worker = worker_of(process)
        worker.suspend()
        if has_claimed(evaluation, node):
            return worker
        worker.resume()


@pytest.mark.soak
@pytest.mark.slow
def test_nodes_that_come_and_go_change_the_plan(run: RunDir, tiny_model: Path) -> None:
    """One node joins another, loses its worker, gets a new one, and is lost with it."""
    write_heldout(run.heldout_dir, count=60)
    evaluation = prepare_evaluation(run, tiny_model, workers=1, nodes=4)
    with crew(run, "alpha") as alpha:
        wait_until(lambda: done(evaluation) and has_claimed(evaluation, "alpha"), "a shard")
        # So that work is left whatever the machine's pace.
        held = stopped_in_a_shard(evaluation, alpha, "alpha")
        assert live_plan(evaluation).worker_names == {"alpha-cpu0"}
        with crew(run, "beta") as beta:
            wait_until(lambda: has_claimed(evaluation, "beta"), "the other node's claim")
            joined = live_plan(evaluation)
            assert joined.worker_names == {"alpha-cpu0", "beta-cpu0"}
            assert joined.earlier[-1].why == "beta-cpu0 has come"
            (under_way,) = joined.under_way
            assert under_way.worker == "alpha-cpu0"

            worker = stopped_in_a_shard(evaluation, beta, "beta")
            before = done(evaluation)
            worker.kill()
            wait_until(
                lambda: len(live_plan(evaluation).earlier) > len(joined.earlier), "another plan"
            )
            again = live_plan(evaluation)
            assert again.earlier[-1].why == "beta-cpu0 died and is started again"
            planned = {work.shard for work in again.shards}
            assert not planned & {path.stem for path in before}
            assert under_way.shard not in planned
            assert all(work.start_s >= 0 and work.end_s > work.start_s for work in again.shards)

            wait_until(lambda: len(done(evaluation)) > len(before), "one more shard")
            worker = stopped_in_a_shard(evaluation, beta, "beta")
            beta.kill()
            beta.wait()
            worker.kill()
            lost = done(evaluation)
        wait_until(
            lambda: live_plan(evaluation).worker_names == {"alpha-cpu0"}, "a plan without it"
        )
        held.resume()
        assert alpha.wait(240) == 0
    last = live_plan(evaluation)
    assert len(lost) < len(read_plan(evaluation).order), "beta was not in the middle"
    assert last.earlier[-1].why in (
        "beta-cpu0 is gone",
        "shards were begun by workers that have died",
    )
    assert last.worker_names == {"alpha-cpu0"}
    assert len(read_responses(evaluation, read_plan(evaluation))) == 60 * 6
    answered = [t.name for t in read_times(evaluation) if t.kind == "shard"]
    assert len(answered) == len(set(answered))
    assert lost.items() <= done(evaluation).items()
    assert read_record(evaluation.inferred_path, Inferred) is not None
    assert not list((evaluation.claims_dir / "crews").glob("alpha*"))
