"""What a person points at -> inputs: each is one job's logs, and gets one verdict.

A file is an input. A directory is one when its files are the ranks, nodes or streams of one job, whatever
lies beside them (a launcher's output, a list of the environment); a folder of unrelated logs is one input for
each file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.errors import InputError
from configs.rundir import AttemptDir, RunDir
from tasks.diagnose.binary import is_binary
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.sources import STDIN, printable, rank_of_file

_PART = r"ranks?|nodes?|hosts?|workers?|tasks?|procs?|process|stdout|stderr|gpu|dgx|hgx"
_PART_OF_A_JOB = compile_pattern(
    rf"(?i)(?:^|[^a-z])(?:local_?)?(?:{_PART}|launcher|supervisor)(?:[^a-z]|$)"
)
_NUMBERED_PART = compile_pattern(
    rf"(?i)(?:^|[^a-z])(?:local_?|global_?)?(?:{_PART})[ ._-]?(?P<number>\d{{1,6}})(?:\D|$)"
)
_DIGITS = compile_pattern(r"\d+")
_OF_A_SLURM_JOB = compile_pattern(r"(?i)(?:^|[^a-z])(?:slurm|job)[._-]?(?P<job>\d+)(?:\D|$)")
_NUMBER = compile_pattern(r"^\d+$")
_FEW = 8
"""Other files that lie beside the logs of a job of two ranks."""
_STREAMS = (".out", ".err", ".stdout", ".stderr")
_RECORDS = (".json", ".jsonl")
"""A rank's log may be in them, which its number tells."""
_NOT_LOGS = (
    ".tsv",
    ".csv",
    ".md",
    ".json",
    ".jsonl",
    ".yaml",
    ".yml",
    ".py",
    ".pt",
    ".bin",
    ".safetensors",
    ".npy",
    ".npz",
    ".pkl",
    ".parquet",
    ".arrow",
)


@dataclass(frozen=True)
class Folder:
    """A directory of unrelated logs."""

    name: str
    """As it was given."""
    logs: int


@dataclass(frozen=True)
class LogInput:
    """The logs of one job."""

    name: str
    """As it was given, in what can be printed."""
    files: tuple[Path, ...] = ()
    """Empty for standard input."""
    attempt: AttemptDir | None = None
    """An attempt of one of Overland's own runs: its events and records are read too."""
    folder: Folder | None = None
    """That it was found in, with other logs that have nothing to do with it."""


def find_inputs(paths: Sequence[str]) -> list[LogInput]:
    """The inputs behind the paths, in order; InputError for what is not there or holds no log."""
    found: list[LogInput] = []
    for name in paths:
        path = _path_of(name)
        if not name:
            raise InputError("an empty path was given: is a variable not set?")
        if name == STDIN:
            found.append(LogInput(STDIN))
        elif path.is_dir():
            found += _of_directory(name, path)
        elif path.is_char_device() or path.is_block_device() or path.is_socket():
            raise InputError(f"{name} is a device, no log: give a file, a directory of logs, or -")
        elif path.exists():
            found.append(LogInput(name, (path,)))
        elif path.is_symlink():
            raise InputError(f"{name} is a link that leads to no file: give the log itself")
        else:
            raise InputError(f"{name} does not exist: give a log file, a directory of logs, or -")
    return [replace(log, name=printable(log.name)) for log in found]


def _path_of(name: str) -> Path:
    """With ~ as a shell reads it; a name of nobody's home is a path like any other."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _of_directory(name: str, path: Path) -> list[LogInput]:
    attempts = RunDir(path).attempts() if (path / "attempts").is_dir() else []
    attempt = attempts[-1] if attempts else _attempt_at(path)
    if attempt is not None and attempt.record() is not None:
        return [LogInput(name, (), attempt)]
    files = sorted(p for p in path.rglob("*") if p.is_file() and _may_be_log(p, path))
    if not files:
        for closed in (p for p in (path, *path.rglob("*")) if p.is_dir() and not _may_list(p)):
            raise InputError(f"{closed} cannot be read: permission denied")
        raise InputError(f"{name} holds no log: the directory has no text file to read")
    stems = {p.name.partition(".")[0] for p in files}
    if len(stems) == 1 or all(_is_part_of_a_job(p, path) for p in files) or _is_a_job(files, path):
        return [LogInput(name, tuple(files))]
    jobs = _by_job(files)
    of = Folder(name, len(jobs)) if len(jobs) > 1 else None
    return [LogInput(str(parts[0]), tuple(parts), folder=of) for parts in jobs]


def _is_a_job(files: Sequence[Path], folder: Path) -> bool:
    """Whether some of the files are by their names the ranks or nodes of a job, so that what lies beside is of it.

    Many other files, or those of several jobs of Slurm, tell that it is no one job's folder.
    """
    others: list[Path] = []
    parts: dict[str, set[str]] = {}
    for path in files:
        name = str(path.relative_to(folder))
        number = _number_of_part(path, name)
        if number is None:
            others.append(path)
        else:
            parts.setdefault(_DIGITS.sub("#", name), set()).add(number)
    jobs = {match["job"] for path in others if (match := _OF_A_SLURM_JOB.search(path.name))}
    few = len(others) <= max(_FEW, len(files) - len(others))
    return few and len(jobs) < 2 and any(len(numbers) > 1 for numbers in parts.values())


def _number_of_part(path: Path, name: str) -> str | None:
    """Which rank, node or task of a job the file is of, by its name."""
    if (rank := rank_of_file(path)) is not None:
        return str(rank)
    match = _NUMBERED_PART.search(name)
    return match["number"] if match is not None else None


def _by_job(files: Sequence[Path]) -> list[list[Path]]:
    """The files, with the two streams of a job (slurm-12.out, slurm-12.err) together."""
    jobs: dict[Path, list[Path]] = {}
    for path in files:
        jobs.setdefault(path.with_suffix("") if path.suffix in _STREAMS else path, []).append(path)
    return list(jobs.values())


def _may_list(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _attempt_at(path: Path) -> AttemptDir | None:
    number = int(path.name) if path.name.isdecimal() else 0
    return AttemptDir(path, number) if (path / "attempt.json").is_file() else None


def _may_be_log(path: Path, folder: Path) -> bool:
    """Whether a file of a folder is read: it is none that data, settings or a core dump lie in."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    name = path.name.lower()
    part_in_records = name.endswith(_RECORDS) and _number_of_part(path, path.name) is not None
    may_be = part_in_records or not name.endswith(_NOT_LOGS)
    return may_be and not hidden and not is_binary(path)


def _is_part_of_a_job(path: Path, folder: Path) -> bool:
    """Whether the name speaks of a part: rank_3.log, node7/err, 0/stderr.log."""
    parts = path.relative_to(folder).parts
    if len(parts) > 1:
        return True
    stem = parts[-1].partition(".")[0]
    return _NUMBER.match(stem) is not None or _PART_OF_A_JOB.search(stem) is not None
