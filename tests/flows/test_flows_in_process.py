"""Flows called from Python, under Prefect's test harness."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness

from configs.errors import ConfigError, InputError, RunDirectoryError
from configs.files import file_lock, is_locked, write_text
from configs.load import dump_config, load_config
from configs.records import AttemptRecord
from configs.rundir import RunDir, write_record
from configs.schema import RunConfig
from flows import evaluate as flow_module
from flows import session
from flows.diagnose import diagnose
from flows.evaluate import due_steps, evaluate
from flows.locks import held, holds, is_live
from flows.prepare import prepare
from flows.pretrain import pretrain
from flows.session import open_run
from tasks.evaluate.task import leave_out
from tests.flows.helpers import tiny_config
from tests.flows.scored_runs import STEPS, commit, make, score

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def harness() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load_config(tiny_config(tmp_path))


def test_prepare_returns_the_manifest_and_does_not_work_twice(config: RunConfig) -> None:
    first = prepare(config)
    again = prepare(config)
    assert first.documents_read == 240
    assert again == first  # created_at too: it is the same file
    assert not is_live(RunDir(config.resolved_run_dir()))


def test_the_data_set_stays_once_training_has_begun(config: RunConfig, tmp_path: Path) -> None:
    first = prepare(config)
    run = RunDir(config.resolved_run_dir())
    record = AttemptRecord(number=1, key="k", job_id="j", submitted_at=1.0)
    write_record(run.attempt(1).record_path, record)
    (tmp_path / "corpus.jsonl").unlink()
    assert prepare(config) == first
    run.manifest_path.unlink()
    with pytest.raises(RunDirectoryError, match="has training attempts but no data set"):
        prepare(config)


def test_pretrain_without_data_says_what_to_run(config: RunConfig) -> None:
    with pytest.raises(RunDirectoryError, match="overland prepare"):
        pretrain(config)
    assert not config.resolved_run_dir().exists()


def test_pretrain_refuses_a_data_set_of_another_config(config: RunConfig) -> None:
    prepare(config)
    with pytest.raises(RunDirectoryError, match="seed=1234, this config says 5"):
        pretrain(config.model_copy(update={"seed": 5}))
    assert RunDir(config.resolved_run_dir()).attempts() == []


def test_evaluate_names_the_checkpoints_that_exist(config: RunConfig) -> None:
    prepare(config)
    with pytest.raises(InputError, match=r"no committed checkpoint of step 7: it has \[\]"):
        evaluate(config.resolved_run_dir(), [7])
    assert evaluate(config.resolved_run_dir()) == {}


def test_evaluate_of_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run directory"):
        evaluate(tmp_path)


def test_an_inner_flow_finds_the_stage_held(config: RunConfig) -> None:
    run = RunDir(config.resolved_run_dir())
    with open_run(config, "prepare", "pretrain"):
        assert holds(run, "prepare") and is_live(run)
        with open_run(config, "prepare"):
            pass
        assert holds(run, "prepare")
        # A stage that this process does not hold is another flow's affair.
        with held(run, "evaluate"):
            assert holds(run, "evaluate")
    assert not is_live(run)


def test_a_held_stage_is_refused_with_its_holder(config: RunConfig) -> None:
    run = RunDir(config.resolved_run_dir())
    with (
        held(run, "pretrain"),
        pytest.raises(RunDirectoryError, match="in use by a live run"),
        held(run, "pretrain"),
    ):
        pass


def test_without_checkpoints_nothing_is_due(config: RunConfig) -> None:
    assert due_steps(config, RunDir(config.resolved_run_dir()), training_over=True) == []


def test_the_event_reaches_prefect_and_a_step_that_was_left_out_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(tmp_path, regressions={"webhook_env": None})
    run = RunDir(config.resolved_run_dir())
    write_text(run.config_path, dump_config(config))
    run.locks_dir.mkdir(parents=True)
    for step in STEPS:
        commit(run, step)
    leave_out(run, 4, waiting=9)
    monkeypatch.setattr(flow_module, "evaluate_checkpoint", lambda _, step, **__: score(run, step))
    assert evaluate(run.path, [4]) == {4: True}
    assert evaluate(run.path) == dict.fromkeys(STEPS[1:], True)
    with get_client(sync_client=True) as client:
        wanted = {"filter": {"event": {"name": ["overland.evaluation.regressed"]}}}
        deadline = time.monotonic() + 240
        while not (
            events := client.request("POST", "/events/filter", json=wanted).json()["events"]
        ):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert [event["resource"]["overland.step"] for event in events] == ["24"]
    assert events[0]["payload"]["regressions"][0]["task"] == "t"


def test_evaluations_that_a_server_starts_wait_and_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(tmp_path, regressions={"webhook_env": None})
    run = RunDir(config.resolved_run_dir())
    write_text(run.config_path, dump_config(config))
    run.locks_dir.mkdir(parents=True)
    commit(run, STEPS[0])
    monkeypatch.setattr(flow_module, "evaluate_checkpoint", lambda _, step, **__: score(run, step))
    for module in (flow_module, session):
        monkeypatch.setattr(module, "is_from_server", lambda: True)
    with file_lock(run.locks_dir / "evaluate-next"):
        assert evaluate(run.path) == {}, "one that waits will see to it"
    with ExitStack() as other:
        other.enter_context(file_lock(run.locks_dir / "evaluate"))

        seen_waiting = threading.Event()

        def commit_and_end() -> None:
            deadline = time.monotonic() + 60.0
            while not is_locked(run.locks_dir / "evaluate-next") and time.monotonic() < deadline:
                time.sleep(0.1)
            if is_locked(run.locks_dir / "evaluate-next"):
                seen_waiting.set()
            commit(run, STEPS[1])
            other.close()

        end = threading.Thread(target=commit_and_end)
        end.start()
        assert evaluate(run.path) == dict.fromkeys(STEPS[:2], True)
        end.join()
        assert seen_waiting.is_set()


def test_logs_of_any_job_are_diagnosed_on_the_prefect_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OVERLAND_CASES", str(tmp_path / "store"))
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank_0.log").write_text("Traceback (most recent call last):\nKeyError: 'lr'\n")
    (logs / "rank_1.log.gz").write_bytes(b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 1000)
    (found,) = diagnose([str(logs)])
    assert (found["class"], found["root_cause_line"]) == ("KeyError", 2)
    assert "rank_1.log.gz" in caplog.text
    with pytest.raises(InputError, match="say which logs"):
        diagnose([])
    with pytest.raises(InputError, match="does not exist"):
        diagnose([str(tmp_path / "nothing")])
