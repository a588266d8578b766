"""Removes the checkpoints that no rule keeps, whole, at any moment of a crash.

    checkpoints/step_00000200/                  committed
    checkpoints/.removed/step_00000200-1a2b/    renamed: nobody finds it any more
                                                then its files in storage go, then these, the marker last

A folder that is found below `.removed` is one that was not finished; the next call does that. What a
killed save has left goes the same way, since it too may have files in storage. Nothing that somebody
reads is removed (:mod:`tasks.train.in_use`); it is tried again after the next commit.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from pathlib import Path

from configs.errors import CheckpointError
from configs.evaluation_due import is_due
from configs.files import file_lock, sync_directory
from configs.lineage import lineage_of
from configs.records import CommitMarker
from configs.rundir import COMMIT_MARKER_NAME, RunDir, read_record, step_of_folder
from configs.schema import RunConfig
from tasks.train.checkpoint_format import SAVING_FILE, Saving
from tasks.train.in_use import removable
from tasks.train.patience import BRIEF
from tasks.train.retention import Decision, Facts, Rules, keep, rules_of
from tasks.train.staging import remove_unused
from tasks.train.storage import open_storage
from tasks.train.telling_events import TellingEvents

logger = logging.getLogger(__name__)

REMOVED = ".removed"
_LOCK_NAME = ".removing.lock"


def apply(
    run: RunDir,
    config: RunConfig,
    step: int | None = None,
    *,
    events: TellingEvents | None = None,
) -> list[int]:
    """Remove what no rule keeps, after the commit of `step`; returns the steps that are gone.

    Without `step`, the run's events tell where training stands. Who calls it again and again gives
    `events`, which then are not read anew. What cannot be removed now (it is read,
    storage does not answer, another process is at it) is logged, and left for the next call.
    """
    if not run.checkpoints_dir.is_dir():
        return []
    with file_lock(run.checkpoints_dir / _LOCK_NAME, blocking=False) as is_mine:
        return _apply(run, config, step, events or TellingEvents(run)) if is_mine else []


def remove_unneeded_checkpoints(config: RunConfig) -> None:
    """Apply the rules outside of training: it has ended, or an evaluation has, which had kept one."""
    run = RunDir(config.resolved_run_dir())
    try:
        if gone := apply(run, config):
            logger.info("removed the checkpoints of steps %s, which no rule keeps", gone)
    except OSError as error:
        logger.warning("checkpoints below %s could not be removed: %s", run.checkpoints_dir, error)


def _apply(run: RunDir, config: RunConfig, step: int | None, events: TellingEvents) -> list[int]:
    remove_unused(run)
    if step is None:
        step = events.position()
    if step is not None:
        _set_aside_killed_saves(run, step)
    _finish_removals(run)
    rules, markers = rules_of(config), _markers(run)
    if rules is None or step is None:
        return []
    decision = keep(markers, rules, gather(run, config, rules, markers, step, events))
    gone = [old for old in decision.removed if _take_away(run, old, decision)]
    _finish_removals(run)
    return gone


def gather(
    run: RunDir,
    config: RunConfig,
    rules: Rules,
    markers: dict[int, CommitMarker],
    step: int,
    events: TellingEvents,
) -> Facts:
    """The facts that the rules need, for these checkpoints."""
    lineage = lineage_of(run)
    reports = {old: run.evaluation(old).regressions() for old in markers}
    evaluate = config.evaluate
    proves = (
        evaluate.enabled and evaluate.regressions.enabled and evaluate.regressions.mark_unhealthy
    )
    return Facts(
        current_step=step,
        scores=_scores(run, markers, rules.best_metric) if rules.best else {},
        anomaly_onset=events.last_onset(),
        void=frozenset(
            old for old, m in markers.items() if lineage.is_void(attempt=m.attempt, step=old)
        ),
        waiting=frozenset(old for old in markers if _waits(run, config, markers[old])),
        unhealthy=frozenset(old for old, report in reports.items() if report and report.unhealthy),
        proven=frozenset(
            old
            for old, report in reports.items()
            if proves and report and report.compared_with and not report.unhealthy
        ),
    )


def _markers(run: RunDir) -> dict[int, CommitMarker]:
    found = ((c.step, c.marker()) for c in run.committed_checkpoints())
    return {step: marker for step, marker in found if marker is not None}


def _scores(run: RunDir, markers: dict[int, CommitMarker], metric: str) -> dict[int, float]:
    """Value of TASK/METRIC, of the checkpoints that are evaluated."""
    task, _, name = metric.partition("/")
    values: dict[int, float] = {}
    for step in markers:
        scores = run.evaluation(step).scores()
        for score in scores.scores if scores else ():
            if (score.task, score.metric) == (task, name):
                values[step] = score.value
    return values


def _waits(run: RunDir, config: RunConfig, marker: CommitMarker) -> bool:
    """Whether it is still to be evaluated; one that was left out, or has failed since its commit, is not."""
    if not config.evaluate.enabled or not is_due(config, marker.step):
        return False
    evaluation = run.evaluation(marker.step)
    if evaluation.scores() is not None or evaluation.left_out() is not None:
        return False
    failure = evaluation.failure()
    return failure is None or failure.failed_at < marker.committed_at


def _take_away(run: RunDir, step: int, decision: Decision) -> bool:
    """Take the checkpoint out of everybody's sight, unless somebody reads it."""
    checkpoint = run.checkpoint(step)
    with removable(checkpoint) as free:
        if not free:
            logger.info("checkpoint of step %d is in use, and stays for now", step)
            return False
        try:
            set_aside(checkpoint.path)
        except OSError as error:
            logger.warning("checkpoint of step %d could not be removed: %s", step, error)
            return False
    kept = "; ".join(f"{old} ({', '.join(why)})" for old, why in decision.kept.items())
    logger.info("checkpoint of step %d goes: %s; kept: %s", step, decision.removed[step], kept)
    return True


def set_aside(folder: Path) -> None:
    """Have a folder below checkpoints/ removed by the next call of `apply`, with its files in storage."""
    aside = folder.parent / REMOVED / f"{folder.name}-{uuid.uuid4().hex[:8]}"
    aside.parent.mkdir(exist_ok=True)
    folder.rename(aside)
    sync_directory(folder.parent)


def _set_aside_killed_saves(run: RunDir, step: int) -> None:
    """What saves of earlier steps have begun and, killed or refused, have not committed."""
    for folder in run.checkpoints_dir.iterdir():
        old = step_of_folder(folder)
        if old is None or old >= step or (folder / COMMIT_MARKER_NAME).exists():
            continue
        if (folder / SAVING_FILE).exists():
            logger.info("%s was never committed, and goes", folder)
            set_aside(folder)


def _finish_removals(run: RunDir) -> None:
    parent = run.checkpoints_dir / REMOVED
    for folder in sorted(parent.iterdir()) if parent.is_dir() else []:
        try:
            _remove(run, folder)
        except (CheckpointError, OSError) as error:
            logger.warning("%s is removed later: %s", folder, error)
            return  # the others would have to wait for the same storage


def _remove(run: RunDir, folder: Path) -> None:
    """Its files in storage, whose place only its records know; then the folder, these records last."""
    url = _url_of(folder)
    if url is not None and url not in _urls_in_use(run):
        storage = open_storage(url, folder, BRIEF)
        storage.remove(COMMIT_MARKER_NAME)  # a copy; half a checkpoint must not look whole there
        storage.remove_all()
    records = [folder / COMMIT_MARKER_NAME, folder / SAVING_FILE]
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path not in records:
            path.unlink()
    for path in records:
        path.unlink(missing_ok=True)
    folder.rmdir()


def _url_of(folder: Path) -> str | None:
    """Where the folder's checkpoint, or what there is of it, is stored."""
    marker = read_record(folder / COMMIT_MARKER_NAME, CommitMarker)
    if marker is not None:
        return marker.storage
    saving = read_record(folder / SAVING_FILE, Saving)
    return saving.storage if saving else None


def _urls_in_use(run: RunDir) -> set[str | None]:
    """Places of the checkpoints that stay, and of the saves that are under way."""
    folders = run.checkpoints_dir.iterdir()
    return {_url_of(folder) for folder in folders if step_of_folder(folder) is not None}
