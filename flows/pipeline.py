"""Flow: real text to evaluated checkpoints, through failures. What `overland run` runs."""

from __future__ import annotations

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger

from configs.errors import RunStoppedError
from configs.rundir import RunDir
from configs.schema import RunConfig
from flows.cancellation import end_evaluations, end_training
from flows.evaluate import Following, evaluate_as_committed
from flows.prepare import prepare
from flows.pretrain import pretrain
from flows.session import open_run, tracked
from flows.show.progress import say
from infra.interrupt import raise_if_interrupted
from tasks.train.task import require_storage


@flow(
    name="pipeline",
    flow_run_name="{config.name}",
    on_cancellation=[end_training, end_evaluations],
)
def pipeline(config: RunConfig) -> None:
    """Prepare data, pretrain, and evaluate every committed checkpoint while training goes on.

    Run again after any interruption, it continues: finished stages are skipped, a live job is
    picked up, nothing is done twice.
    """
    with open_run(config, "prepare", "pretrain", "evaluate") as run:
        require_storage(config)
        prepare(config)
        with tracked(run, config):
            _train_and_evaluate(config)
        _publish_scores(run)


def _train_and_evaluate(config: RunConfig) -> None:
    """Pretrain with the evaluations beside it; ends when both have ended.

    When training fails, the evaluations go on until what it did commit is scored. What ends the
    process (Ctrl-C, SIGTERM), whenever it comes, and a stop file cancel the evaluation that runs.
    """
    following = Following()
    evaluations = _start_evaluations(config, following)
    try:
        pretrain(config)
    except RunStoppedError:
        following.stop.set()  # Whoever wants training to stop may want the machine.
        raise
    except Exception:
        _finish_evaluations(evaluations, following)
        raise
    except BaseException:
        following.stop.set()
        raise
    _finish_evaluations(evaluations, following)


def _start_evaluations(config: RunConfig, following: Following) -> PrefectFuture[None] | None:
    if not config.evaluate.enabled:
        return None
    return evaluate_as_committed.submit(config, following)


def _finish_evaluations(evaluations: PrefectFuture[None] | None, following: Following) -> None:
    """Training is over: wait until every checkpoint that is due has been tried."""
    if evaluations is None:
        return
    following.training_over.set()
    try:
        raise_if_interrupted()
        evaluations.wait()
    except BaseException:
        following.stop.set()
        raise
    if not evaluations.state.is_completed():
        say(f"evaluation has ended early: {evaluations.state.message}")


def _publish_scores(run: RunDir) -> None:
    """Put the table of checkpoints x scores on the flow run's page; only a view, no more."""
    scores = [record for evaluation in run.evaluations() if (record := evaluation.scores())]
    table = [
        {"step": record.step} | {f"{s.task} {s.metric}": s.value for s in record.scores}
        for record in scores
    ]
    if not table:
        return
    try:
        create_table_artifact(table, key="scores", description=f"Scores of {run.path.name}")
    except Exception:
        get_run_logger().warning("Prefect's page lacks the table of scores", exc_info=True)
