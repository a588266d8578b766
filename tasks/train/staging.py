"""A checkpoint's files as a local folder, wherever they are kept.

    checkpoints/.staged/step_00000200-003/       files fetched from storage, each whole and checked
    checkpoints/.staged/step_00000200-003.lock   locked by those who use them

Who comes while others use the folder, or after one that was killed, takes the files that are whole; the
last one that leaves removes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import CheckpointError
from configs.files import file_lock, remembered_sha256
from configs.records import CommitMarker
from configs.rundir import COMMIT_MARKER_NAME, CheckpointDir, RunDir
from tasks.train.checkpoint_files import check_files
from tasks.train.in_use import in_use, locked
from tasks.train.storage import open_storage
from tasks.train.storage_base import Storage, checked_name

STAGED = ".staged"

Agree = Callable[[str], str]
"""Takes why this rank failed (empty: it did not); returns that of all ranks, the same on each."""


def _alone(problem: str) -> str:
    return problem


@contextmanager
def committed_checkpoint(run: RunDir, step: int) -> Iterator[tuple[Path, CommitMarker]]:
    """The files of a step's checkpoint in a local folder, and its marker; not removed meanwhile.

    CheckpointError when it is not committed or not whole; only sizes are looked at.
    """
    checkpoint = run.checkpoint(step)
    if checkpoint.marker() is None:
        if checkpoint.is_committed():
            raise CheckpointError(f"{checkpoint.path / COMMIT_MARKER_NAME} is damaged")
        there = ", ".join(str(c.step) for c in run.committed_checkpoints()) or "none"
        raise CheckpointError(
            f"{checkpoint.path} is no committed checkpoint: committed steps are {there}"
        )
    with in_use(checkpoint) as marker, staged(checkpoint, marker) as folder:
        try:
            check_files(folder, marker, marker.files, contents=False)
        except CheckpointError as error:
            raise CheckpointError(f"{checkpoint.path} is damaged: {error}") from error
        yield folder, marker


@contextmanager
def staged(
    checkpoint: CheckpointDir,
    marker: CommitMarker,
    *,
    rank: int = 0,
    size: int = 1,
    agree: Agree = _alone,
) -> Iterator[Path]:
    """A local folder with all the checkpoint's files; its own, if they are kept there.

    Of `size` ranks that enter together, each fetches its share, and none goes on before `agree` has
    told it that all have theirs. CheckpointError, on all of them, when one could not fetch a file.
    """
    if marker.storage is None:
        yield checkpoint.path
        return
    folder = _staging_folder(checkpoint, marker)
    lock = folder.with_name(f"{folder.name}.lock")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with locked(lock, shared=True, create=True):
            storage = open_storage(marker.storage, checkpoint.path)
            mine = sorted(marker.files)[rank::size]
            if problem := agree(_fetch_all(storage, folder, marker, mine)):
                raise CheckpointError(problem)
            yield folder
    finally:
        _remove_unused(folder)


def remove_unused(run: RunDir) -> None:
    """Remove the staged files that nobody uses any more: their users were killed."""
    parent = run.checkpoints_dir / STAGED
    if parent.is_dir():
        for folder in [path for path in parent.iterdir() if path.is_dir()]:
            _remove_unused(folder)


def _staging_folder(checkpoint: CheckpointDir, marker: CommitMarker) -> Path:
    """The attempt is in its name: the same step saved again is another checkpoint."""
    return checkpoint.path.parent / STAGED / f"{checkpoint.path.name}-{marker.attempt:03d}"


def _remove_unused(folder: Path) -> None:
    lock = folder.with_name(f"{folder.name}.lock")
    with locked(lock, shared=False, create=True) as held:
        if held:
            shutil.rmtree(folder, ignore_errors=True)  # what stays is found by the next call
            lock.unlink()


def _fetch_all(storage: Storage, folder: Path, marker: CommitMarker, names: list[str]) -> str:
    try:
        folder.mkdir(exist_ok=True)
        for name in names:
            _fetch(storage, folder, marker, checked_name(name))
    except (CheckpointError, OSError) as error:
        return str(error)
    return ""


def _fetch(storage: Storage, folder: Path, marker: CommitMarker, name: str) -> None:
    """Fetch a file, unless it is there: another process may be fetching it just now."""
    target, expected = folder / name, marker.files[name]
    with file_lock(folder / f".{name}.lock"):
        if target.is_file() and target.stat().st_size == expected.size_bytes:
            if remembered_sha256(target) == expected.sha256:
                return
            target.unlink()
        for left_behind in folder.glob(f".{name}.*.tmp"):
            left_behind.unlink()  # by one that was killed
        storage.download(name, target, expected)
