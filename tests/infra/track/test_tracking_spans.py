from __future__ import annotations

from pathlib import Path

from tracked_runs import START, RunWriter, run_writer

from configs.events import AnomalyEvent, CheckpointEvent, Event, StartEvent
from configs.records import AttemptRecord
from infra.track.spans import MAX_SPANS, Span, attempt_span, evaluation_span


def tree(writer: RunWriter, number: int) -> Span:
    attempt = writer.run.attempt(number)
    record = attempt.record()
    assert record is not None
    return attempt_span(record, attempt.events(), attempt.verdict(), attempt.action())


def names(span: Span) -> list[str]:
    return [child.name for child in span.children]


def test_a_failed_attempt_from_submission_to_decision(tmp_path: Path) -> None:
    writer = run_writer(tmp_path / "run")
    writer.first_attempt()
    root = tree(writer, 1)
    assert names(root) == [
        "startup",
        "train steps 1-50",
        "validation step 50",
        "checkpoint step 50",
        "train steps 51-100",
        "validation step 100",
        "checkpoint step 100",
        "train steps 101-129",
        "fault before step 130",
        "detection",
        "diagnosis",
    ]
    assert (root.start, root.end) == (START, START + 272.0)
    assert root.error == "NodeFailure: rank 1 exit code -9"
    by_name = {child.name: child for child in root.children}
    assert by_name["detection"].end - by_name["detection"].start == 3.0
    assert by_name["diagnosis"].end - by_name["diagnosis"].start == 2.0
    assert by_name["diagnosis"].attributes["action"] == "restart_same_nodes"
    assert by_name["train steps 1-50"].start == START + 6.0 - 1.9
    assert by_name["train steps 1-50"].end == START + 104.0
    for child in root.children:
        assert root.start <= child.start <= child.end <= root.end, child.name


def test_a_completed_attempt_loads_a_checkpoint_and_has_no_diagnosis(tmp_path: Path) -> None:
    writer = run_writer(tmp_path / "run")
    writer.second_attempt()
    root = tree(writer, 2)
    assert root.error == ""
    assert "diagnosis" not in names(root)
    (loading,) = root.children[0].children
    assert loading.name == "load checkpoint"
    assert loading.attributes == {"checkpoint": "step_00000100"}
    assert loading.end - loading.start == 1.0


def test_an_attempt_that_ended_before_training_is_all_startup() -> None:
    record = AttemptRecord(
        number=1, key="k", job_id="1", submitted_at=5.0, ended_at=9.0, outcome="cancelled"
    )
    root = attempt_span(record, [], None, None)
    assert names(root) == ["startup"]
    assert root.children[0].error
    assert (root.start, root.end, root.error) == (5.0, 9.0, "cancelled")


def test_a_very_long_attempt_keeps_the_last_spans() -> None:
    record = AttemptRecord(
        number=1, key="k", job_id="1", submitted_at=0.0, ended_at=2000.0, outcome="completed"
    )
    events: list[Event] = [
        CheckpointEvent(time=float(step), step=step, outcome="committed", duration_s=0.5)
        for step in range(1, MAX_SPANS + 11)
    ]
    root = attempt_span(record, events, None, None)
    assert len(root.children) == MAX_SPANS
    assert names(root)[-1] == f"checkpoint step {MAX_SPANS + 10}"
    assert root.attributes["spans_left_out"] == 11  # Ten checkpoints, and the startup.


def test_evaluation_stages_follow_one_another(tmp_path: Path) -> None:
    writer = run_writer(tmp_path / "run")
    writer.scores(50, START)
    scores = writer.run.evaluation(50).scores()
    assert scores is not None
    root = evaluation_span(scores)
    assert names(root) == ["export", "infer", "score"]
    assert [c.start - START for c in root.children] == [0.0, 1.0, 6.0]
    assert root.end == START + 9.0


def test_an_anomaly_and_a_start_from_memory(tmp_path: Path) -> None:
    record = AttemptRecord(
        number=1, key="k", job_id="j", submitted_at=START, ended_at=START + 20, outcome="stopped"
    )
    start = StartEvent(
        time=START + 5,
        step=7,
        checkpoint=None,
        world_size=2,
        device="cpu",
        precision="fp32",
        num_parameters=1,
        padded_vocab_size=128,
        load_time_s=1.0,
        loaded_from="memory",
    )
    anomaly = AnomalyEvent(
        time=START + 9, step=9, kind="straggler", onset_step=8, fatal=False, rank=1, message="slow"
    )
    root = attempt_span(record, [start, anomaly], None, None)
    assert root.error == ""
    startup, straggler = root.children
    assert [child.name for child in startup.children] == ["load snapshot"]
    assert (straggler.name, straggler.error) == ("anomaly: straggler", "")
    assert straggler.attributes["rank"] == 1
    fatal = anomaly.model_copy(update={"fatal": True})
    assert attempt_span(record, [start, fatal], None, None).children[1].error == "slow"
