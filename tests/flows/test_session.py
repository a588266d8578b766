"""Taking a run directory, and giving it back as it was when the input is wrong."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from prefect.futures import PrefectFuture

from configs.errors import CorpusError, RunDirectoryError
from configs.files import file_lock
from configs.load import load_config
from configs.rundir import COMMIT_MARKER_NAME, RunDir
from configs.schema import RunConfig
from flows import locks, pipeline, session
from flows.evaluate import Following, due_steps
from tests.flows.helpers import tiny_config


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load_config(tiny_config(tmp_path))


def test_wrong_input_leaves_no_directory(config: RunConfig) -> None:
    with pytest.raises(CorpusError), session.open_run(config, "prepare") as run:
        raise CorpusError("no text")
    assert not run.path.exists()


def test_wrong_input_leaves_what_another_flow_uses(config: RunConfig) -> None:
    with pytest.raises(CorpusError), session.open_run(config, "pretrain") as run:  # noqa: SIM117
        with file_lock(run.locks_dir / "prepare"):
            raise CorpusError("no text")
    assert run.config_path.is_file()


def test_a_flow_that_comes_second_leaves_the_first_ones_directory(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw no directory, and the other was faster."""
    hold = locks.held

    @contextmanager
    def hold_after_another(run: RunDir, stage: str, **how: Any) -> Iterator[None]:
        with file_lock(run.locks_dir / stage), hold(run, stage, **how):
            yield

    monkeypatch.setattr(session, "held", hold_after_another)
    with pytest.raises(RunDirectoryError, match="in use"), session.open_run(config, "prepare"):
        pass
    assert (config.resolved_run_dir() / "locks" / "prepare").exists()


def test_the_kept_config_has_absolute_paths(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = config.data.model_copy(update={"paths": ["corpus.jsonl"]})
    with session.open_run(config.model_copy(update={"data": data}), "prepare") as run:
        pass
    assert load_config(run.config_path).data.paths == [str(tmp_path / "corpus.jsonl")]


def test_a_path_that_cannot_be_looked_at_is_one_sentence(config: RunConfig, tmp_path: Path) -> None:
    too_long = config.model_copy(update={"run_dir": tmp_path / ("x" * 300)})
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        session.check_run(too_long)


def commit(run: RunDir, *steps: int) -> None:
    for step in steps:
        folder = run.checkpoint(step).path
        folder.mkdir(parents=True)
        (folder / COMMIT_MARKER_NAME).touch()


def test_the_newest_checkpoint_is_due_out_of_turn_only_when_no_other_will_come(
    config: RunConfig,
) -> None:
    config = config.model_copy(
        update={
            "evaluate": config.evaluate.model_copy(update={"every_nth": 2}),
            "checkpoint": config.checkpoint.model_copy(update={"interval_steps": 2}),
        }
    )
    run = RunDir(config.resolved_run_dir())
    commit(run, 2, 4, 6)
    run.checkpoint(8).path.mkdir()
    assert due_steps(config, run, training_over=False) == [4]
    assert due_steps(config, run, training_over=True) == [4, 6]
    shutil.rmtree(run.checkpoint(2).path)  # by the retention rules: the others keep their turn
    assert due_steps(config, run, training_over=False) == [4]


def test_a_flow_that_trains_is_seen(config: RunConfig) -> None:
    run = RunDir(config.resolved_run_dir())
    assert not locks.is_training(run)
    with session.open_run(config, "pretrain"):
        assert locks.is_training(run) and locks.is_live(run)
    assert not locks.is_training(run)


def test_a_colleague_who_may_only_read_sees_that_a_run_is_live() -> None:
    folder = Path(tempfile.mkdtemp())  # Nobody else may enter pytest's.
    run = RunDir(folder)
    try:
        with locks.held(run, "pretrain"):
            (run.locks_dir / "pretrain").chmod(0o444)
            for path in (run.locks_dir, folder):
                path.chmod(0o555)
            with as_nobody():
                assert locks.is_live(run) and locks.is_training(run)
                with pytest.raises(RunDirectoryError, match="in use"):
                    locks.check_free(run, "pretrain")
                locks.check_free(run, "evaluate")
        with as_nobody():
            assert not locks.is_live(run)
            assert [path.name for path in run.locks_dir.iterdir()] == ["pretrain"]
    finally:
        for path in (folder, run.locks_dir):
            path.chmod(0o755)
        shutil.rmtree(folder)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere: be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


class Interrupted:
    """Evaluations during which somebody presses Ctrl-C."""

    def wait(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_after_training_cancels_the_evaluation() -> None:
    following = Following()
    evaluations = cast("PrefectFuture[None]", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        pipeline._finish_evaluations(evaluations, following)
    assert following.stop.is_set()
