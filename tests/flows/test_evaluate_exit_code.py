"""`overland evaluate`'s exit code where a task could not be scored."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from configs.errors import ConfigError
from configs.files import write_text
from configs.load import dump_config
from configs.records import EvaluationScores
from configs.rundir import EvaluationDir, RunDir, write_record
from flows import cli, cli_evaluate
from tests.flows.scored_runs import commit, make, score

FAILED = {"code": "its metric raised"}


@pytest.mark.parametrize(
    ("options", "failed", "code"),
    [([], FAILED, 1), ([], {}, 0), (["--step", "8"], FAILED, 1), (["--step", "4"], FAILED, 0)],
)
def test_of_a_run_it_says_whether_all_that_was_asked_for_has_scores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    failed: dict[str, str],
    code: int,
) -> None:
    config = make(tmp_path)
    run = RunDir(config.resolved_run_dir())
    for step in (4, 8):
        commit(run, step)
        scores = score(run, step).model_copy(update={"failed": failed if step == 8 else {}})
        write_record(run.evaluation(step).scores_path, scores)
    write_text(run.config_path, dump_config(config))
    # All has been evaluated already: the flow has nothing to do.
    monkeypatch.setattr(cli, "_with_progress", lambda config, flow: {4: True, 8: True})
    done = CliRunner().invoke(cli.app, ["evaluate", str(run.path), *options])
    assert done.exit_code == code, done.output
    assert ("its metric raised" in done.output) == bool(failed)


@pytest.mark.parametrize(("failed", "code"), [(FAILED, 1), ({}, 0)])
def test_of_a_model_scores_are_printed_and_what_has_none_makes_it_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: dict[str, str], code: int
) -> None:
    def evaluate_folder(evaluation: EvaluationDir, say: object) -> EvaluationScores:
        return EvaluationScores(step=0, scores=[], failed=failed, tasks=["t"], plan_sha256="")

    write_text(tmp_path / "evaluation.json", '{"model": "/nowhere"}')
    monkeypatch.setattr(cli_evaluate, "evaluate_folder", evaluate_folder)
    done = CliRunner().invoke(cli.app, ["evaluate", str(tmp_path), "--resume"])
    assert done.exit_code == code, done.output
    assert ("code lacks scores: its metric raised" in done.output) == bool(failed)


@pytest.mark.parametrize(("refused", "code"), [((4,), 1), ((4, 8), 2), ((), 0)])
def test_steps_that_cannot_be_scored_anew_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: tuple[int, ...], code: int
) -> None:
    """Wrong input only where nothing was scored."""
    config = make(tmp_path)
    run = RunDir(config.resolved_run_dir())
    write_text(run.config_path, dump_config(config))
    for step in (4, 8):
        write_text(run.evaluation(step).inferred_path, "{}")

    def rescore(evaluation: EvaluationDir, arguments: list[str], say: object) -> EvaluationScores:
        if evaluation.step in refused:
            raise ConfigError("its task is wrong")
        return EvaluationScores(step=evaluation.step, scores=[], tasks=["t"], plan_sha256="")

    monkeypatch.setattr(cli_evaluate, "rescore", rescore)
    done = CliRunner().invoke(cli.app, ["evaluate", str(run.path), "--rescore"])
    assert done.exit_code == code, done.output
    for step in (4, 8):
        is_refused = f"step {step} is not scored anew: its task is wrong" in done.output
        is_kept = f"kept in {run.evaluation(step).path}" in done.output
        assert (is_refused, is_kept) == (step in refused, step not in refused)
