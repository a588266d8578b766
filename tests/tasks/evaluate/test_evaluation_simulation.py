"""The simulated tools do what the real ones do, and ours is close to the bound."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from configs.errors import InputError
from configs.evaluation_simulation import EvaluationSetting
from tasks.evaluate.schedule import WorkItem
from tasks.evaluate.simulate_evaluation import simulate_evaluation, simulate_policies
from tasks.evaluate.simulation_policies import num_worker_partition, size_partition
from tasks.evaluate.simulation_trials import Trial, run_trials
from tasks.evaluate.simulation_workload import SimulatedTask, read_benchmarks, read_workload

ONE_NODE = EvaluationSetting(nodes=1)


def task(name: str, requests: int, factor: int = 1, seconds: float = 100.0) -> SimulatedTask:
    return SimulatedTask(WorkItem(name, requests, seconds, 0.0), factor)


def test_loads_share_a_nodes_bandwidth() -> None:
    """Figure 16 of the paper: 14 GB at 25 Gbit/s, alone and eight at once."""
    assert run_trials([Trial(0.0)], ONE_NODE).end_s == pytest.approx(4.48)
    assert run_trials([Trial(0.0)] * 8, ONE_NODE).end_s == pytest.approx(35.84)
    assert run_trials([Trial(0.0)] * 8, EvaluationSetting(nodes=8)).end_s == pytest.approx(4.48)
    # A ninth trial waits for a GPU, then loads alone.
    run = run_trials([Trial(10.0)] + [Trial(1000.0)] * 7 + [Trial(5.0)], ONE_NODE)
    assert run.end_s == pytest.approx(35.84 + 1000)
    short = EvaluationSetting(nodes=1, gpus_per_node=2)
    # Two load until 8.96 s; the third begins 10 s later, alone, and holds its GPU for its metric.
    run = run_trials([Trial(10.0), Trial(99.0), Trial(5.0, held_s=200.0)], short)
    assert run.end_s == pytest.approx(8.96 + 10 + 4.48 + 5 + 200)
    assert run.infer_end_s == pytest.approx(8.96 + 99)


def test_a_load_that_joins_another_halves_its_speed() -> None:
    setting = EvaluationSetting(nodes=1, gpus_per_node=1, process_start_s=2.0)
    assert run_trials([Trial(1.0)], setting).end_s == pytest.approx(2 + 4.48 + 1)
    two = EvaluationSetting(nodes=1, gpus_per_node=2)
    run = run_trials([Trial(0.0), Trial(0.0), Trial(0.0)], two)
    assert run.end_s == pytest.approx(3 * 4.48)  # The node's bandwidth is never idle.


def test_size_partition_splits_evenly_and_packs_until_the_next_is_too_much() -> None:
    tasks = [task("small", 100), task("large", 2500), task("mid", 600), task("generated", 20, 20)]
    # large: ceil(2500 / 1000) = 3 even parts; 600 and 400 fit together, 100 not any more.
    assert size_partition(tasks, 1000, merge=True) == [
        [(1, 834)],
        [(1, 834)],
        [(1, 832)],
        [(2, 600), (3, 20)],
        [(0, 100)],
    ]
    assert [len(part) for part in size_partition(tasks, 1000, merge=False)] == [1] * 6


def test_num_worker_partition_deals_slices_out_in_the_given_order() -> None:
    tasks = [task("a", 40), task("b", 16), task("c", 64)]
    # a: slices of max(40 / 4, 16) = 16; b is too small to split; c: four of 16.
    assert num_worker_partition(tasks, 4, merge=True) == [
        [(0, 16), (2, 16)],
        [(0, 16), (2, 16)],
        [(0, 8), (2, 16)],
        [(1, 16), (2, 16)],
    ]


@pytest.mark.parametrize("nodes", [1, 4, 32])
def test_the_papers_setting_is_within_one_percent_of_the_bound(nodes: int) -> None:
    found = simulate_evaluation(nodes=nodes, tasks=63)
    assert found.lower_bound_s <= found.ours_s <= 1.01 * found.lower_bound_s
    for name, speedup in found.speedup.items():
        assert found.speedup_at_bound[name] / 1.01 <= speedup <= found.speedup_at_bound[name]
        assert speedup > 1
        assert speedup >= 1.5 or nodes > 1 or not name.startswith("opencompass")
    assert found.per_task_s > found.ours_s
    for name in ("opencompass_size", "opencompass_num_worker"):
        tuned, default = found.policies[name], found.policies[f"{name}_default"]
        assert tuned.makespan_s <= default.makespan_s


def test_no_policy_beats_the_bound() -> None:
    """Little work above all: then the way that the model takes to the GPU decides."""
    rng = random.Random(5)
    for _ in range(40):
        tasks = [
            SimulatedTask(
                WorkItem(f"t{n}", rng.randint(1, 200), rng.choice((0.0, 1, 50)), rng.random()), 1
            )
            for n in range(rng.randint(1, 20))
        ]
        start_s = rng.choice((0.0, 9.0))
        setting = EvaluationSetting(nodes=rng.randint(1, 3), process_start_s=start_s)
        found = simulate_policies(tasks, setting, "")
        for policy in found.policies.values():
            assert policy.makespan_s >= found.lower_bound_s * (1 - 1e-9)


def test_the_benchmarks_are_63_with_a_source_each() -> None:
    tasks = read_benchmarks(63)
    assert len({task.item.task for task in tasks}) == 63
    sizes = {task.item.task: task.item.requests for task in tasks}
    assert (sizes["mmlu"], sizes["hellaswag"], sizes["humaneval"]) == (14042, 10042, 164)
    humaneval = next(task.item for task in tasks if task.item.task == "humaneval")
    assert humaneval.metric_s == pytest.approx(42, rel=0.01)
    assert humaneval.infer_s == pytest.approx(114, rel=0.03)
    for number in (0, 64):
        with pytest.raises(InputError, match="--tasks"):
            read_benchmarks(number)


def test_costs_of_processes_and_shards_are_paid_by_all() -> None:
    tasks = read_benchmarks(20)
    plain = simulate_policies(tasks, ONE_NODE, "")
    costly = ONE_NODE.model_copy(update={"process_start_s": 20.0, "shard_overhead_s": 0.5})
    dear = simulate_policies(tasks, costly, "")
    for name in plain.policies:
        assert dear.policies[name].makespan_s > plain.policies[name].makespan_s


GOOD = "task, requests, infer_s, metric_s\nfirst, 100, 50, 10.5\nsecond, 1, 20, 0\n"


def test_a_workload_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "work.csv"
    path.write_text("\ufeff" + GOOD)
    tasks = read_workload(path)
    assert [task.item for task in tasks] == [
        WorkItem("first", 100, 50.0, 10.5),
        WorkItem("second", 1, 20.0, 0.0),
    ]
    assert simulate_evaluation(nodes=1, workload=path).tasks == 2
    with pytest.raises(InputError, match="--tasks chooses among the benchmarks"):
        simulate_evaluation(nodes=1, tasks=63, workload=path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no rows"),
        ("task,requests,infer_s,metric_s\n", "no rows"),
        ("task,requests,infer_s\na,1,2\n", "no column metric_s"),
        (GOOD + "third,5,-1,0\n", "line 4: infer_s .* it is -1"),
        (GOOD + "third,5,nan,0\n", "line 4: infer_s .* it is nan"),
        (GOOD + "third,5,inf,0\n", "line 4: infer_s"),
        (GOOD + "third,5,1,\n", "line 4: metric_s .* it is empty"),
        (GOOD + "third,5,1\n", "line 4: metric_s .* it is empty"),
        (GOOD + "third,0,1,0\n", "line 4: requests must be a whole number"),
        (GOOD + "third,1.5,1,0\n", "line 4: requests must be a whole number"),
        (GOOD + "third,many,1,0\n", "line 4: requests .* it is many"),
        (GOOD + "third,5,1,0,7\n", "line 4: it has more values"),
        (GOOD + ",5,1,0\n", "line 4: the task has no name"),
        (GOOD + "first,5,1,0\n", "line 4: there is task 'first' twice"),
        (GOOD + "\n\nthird,0,1,0\n", "line 6: requests"),
        (GOOD.replace(",", ";"), "is separated by semicolons: save it with commas"),
        (GOOD.replace(", ", "\t"), "is separated by tabs"),
        (
            "first,100,50,10.5\n",
            "has no header, its first line is 'first,100,50,10.5': write task,r",
        ),
        ("first,100,50,10.5\nsecond,1,20,0\n", "has no header"),
        ("name,requests,s,metric_s\na,1,1,1\n", "no column task and no infer_s: its columns"),
    ],
)
def test_a_bad_workload_is_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "work.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=words) as error:
        read_workload(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_all_mistakes_of_a_workload_are_told(tmp_path: Path) -> None:
    path = tmp_path / "work.csv"
    path.write_text(GOOD + "first,0,x,0\n,1,1,inf\nlast,1,1,1\n")
    with pytest.raises(InputError) as error:
        read_workload(path)
    expected = (
        "line 4: requests must be",
        "line 4: infer_s",
        "line 4: there is task 'first' twice",
        "line 5: the task has no name",
        "line 5: metric_s",
    )
    found = str(error.value).splitlines()
    assert len(found) == len(expected)
    assert all(f"--workload {path}, {e}" in f for e, f in zip(expected, found, strict=True))
    path.write_text(GOOD + "bad,0,0,0\n" * 500)
    with pytest.raises(InputError) as error:
        read_workload(path)
    found = str(error.value).splitlines()
    assert len(found) == 11 and found[-1].endswith("and 490 more mistakes like these")


def test_unreadable_workloads_and_impossible_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_workload(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="cannot be read as CSV"):
        read_workload(tmp_path / "binary.csv")
    endless = Path("/dev/zero")
    with pytest.raises(InputError, match="/dev/zero is longer than 16 MiB"):
        read_workload(endless)
    many = "".join(f"t{n},1,1,1\n" for n in range(5001))
    (tmp_path / "many.csv").write_text("task,requests,infer_s,metric_s\n" + many)
    with pytest.raises(InputError, match="more than 5,000 tasks"):
        read_workload(tmp_path / "many.csv")
    some = "".join(f"t{n},1,1,1\n" for n in range(196))
    (tmp_path / "some.csv").write_text("task,requests,infer_s,metric_s\n" + some)
    with pytest.raises(InputError, match="has 196 tasks: on 512 nodes at most 195"):
        simulate_evaluation(nodes=512, workload=tmp_path / "some.csv")
    for nodes in (0, -1, 10_000):
        with pytest.raises(InputError, match="--nodes"):
            simulate_evaluation(nodes=nodes, tasks=63)
