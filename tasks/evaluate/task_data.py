"""Looks at a task's data files before anything is loaded: are they there, whole, and of the splits that
the task asks for. Reads JSON lines as text; other formats are left to the data sets library.
"""

from __future__ import annotations

import functools
import glob
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.evaluate.catalog import CatalogEntry
from tasks.evaluate.harness_source import nearest
from tasks.evaluate.offline import network_allowed
from tasks.evaluate.render import FILE_LOADERS, local_folder, local_kwargs, strings

_SPLITS = ("test_split", "validation_split", "training_split", "fewshot_split")
_PACKED = (b"\x1f\x8b", b"BZh", b"PK\x03\x04", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""How gzip, bzip2, zip, xz and zstd files begin, which the data sets library unpacks."""
_MOST_BYTES = 256 << 20
"""Of a file are looked at; what is wrong after them the plan says."""
_COLUMNS_SHOWN = 8


def file_problems(entry: CatalogEntry) -> Iterator[str]:
    """Data files that do not exist, and data that would have to come from the network."""
    for pattern in strings(local_kwargs(entry, None).get("data_files")):
        if "://" not in pattern and not glob.glob(pattern, recursive=True):  # noqa: PTH207 (may be absolute)
            yield f"data file {pattern} does not exist"
    wanted = None if network_allowed() else _wants_from_network(entry)
    if wanted:
        yield (
            f"it needs {wanted} from the network, and evaluation runs offline: give it local files "
            "(dataset_path: json, dataset_kwargs.data_files) or set HF_HUB_OFFLINE=0"
        )


def split_problems(entry: CatalogEntry) -> Iterator[str]:
    """Splits that the task asks for and its files do not have, or that are empty or broken."""
    values = entry.values
    if values.get("dataset_path") not in FILE_LOADERS or "custom_dataset" in values:
        return
    if not isinstance(values.get("dataset_kwargs"), dict):
        yield "dataset_path is json or alike, and no file is named: add dataset_kwargs: {data_files: ...}"
        return
    if not values.get("test_split") and not values.get("validation_split"):
        yield "it has neither test_split nor validation_split: say which split is asked about"
    known = files_by_split(entry)
    if known is None:
        return
    for key in _SPLITS:
        split = values.get(key)
        if split is not None and (not isinstance(split, str) or split not in known):
            found = nearest(str(split), known, f"there are {', '.join(sorted(known))}")
            yield f"{key} {split!r} is no split of dataset_kwargs.data_files: {found}"
    if values["dataset_path"] == "json" and not values["dataset_kwargs"].get("field"):
        for path in dict.fromkeys(path for paths in known.values() for path in paths):
            if (problem := _look(path).problem) is not None:
                yield problem


def files_by_split(entry: CatalogEntry) -> dict[str, list[Path]] | None:
    """Split -> its files; None where the data sets library says which splits there are."""
    kwargs = local_kwargs(entry, None)
    files = kwargs.get("data_files")
    if not files or kwargs.get("data_dir") or "split" in kwargs or entry.is_own:
        return None
    by_split = files if isinstance(files, dict) else {"train": files}
    return {
        split: [Path(path) for pattern in strings(patterns) for path in _matching(pattern)]
        for split, patterns in by_split.items()
    }


def columns_of(entry: CatalogEntry) -> set[str] | None:
    """Names that the documents which are asked about have; None where they cannot be told."""
    values = entry.values
    split = values.get("test_split") or values.get("validation_split")
    paths = (files_by_split(entry) or {}).get(str(split), [])
    if values.get("dataset_path") != "json" or not paths or "process_docs" in values:
        return None
    seen = [_look(path).columns for path in paths]
    return None if None in seen else {name for names in seen for name in names or ()}


class _Seen:
    """What a JSON file holds: names of columns (None: not known), and what is wrong with it."""

    def __init__(self, columns: set[str] | None = None, problem: str | None = None) -> None:
        self.columns, self.problem = columns, problem


def _look(path: Path) -> _Seen:
    try:
        status = path.stat()
        return _look_once(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        return _Seen(problem=f"data file {path} cannot be read: {error.strerror}")


@functools.lru_cache(maxsize=4096)
def _look_once(path: Path, size_bytes: int, _time_ns: int) -> _Seen:
    columns: set[str] = set()
    documents, read_bytes = 0, 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith(_PACKED):
                return _Seen()
            if not line.strip():
                continue
            try:
                document = json.loads(line)
            except (ValueError, RecursionError) as error:
                return _whole(path, size_bytes, f"line {number} is no JSON ({_words(error)})")
            if not isinstance(document, dict):
                return _whole(path, size_bytes, f"line {number} is no JSON object")
            columns |= document.keys()
            documents += 1
            read_bytes += len(line)
            if read_bytes > _MOST_BYTES:
                return _Seen()
    if not documents:
        return _Seen(problem=f"data file {path} has no documents: give it one JSON object a line")
    return _Seen(columns)


def _whole(path: Path, size_bytes: int, problem: str) -> _Seen:
    """A file that is no JSON lines may be one JSON value over several of them, or a list of documents."""
    wrong = _Seen(problem=f"data file {path}, {problem}: each line must be one JSON object")
    if size_bytes > _MOST_BYTES:
        return wrong
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return wrong
    if value == []:
        return _Seen(problem=f"data file {path} has no documents: its list is empty")
    if isinstance(value, list) and all(isinstance(document, dict) for document in value):
        return _Seen({name for document in value for name in document})
    return _Seen() if isinstance(value, dict) else wrong


def some_columns(columns: set[str]) -> str:
    """Their names, for a sentence."""
    names = sorted(columns)
    more = f" and {len(names) - _COLUMNS_SHOWN} more" if len(names) > _COLUMNS_SHOWN else ""
    return ", ".join(names[:_COLUMNS_SHOWN]) + more if names else "none"


def _words(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "it is nested too deeply"


def _matching(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern, recursive=True)) if "://" not in pattern else []  # noqa: PTH207 (may be absolute)


def _wants_from_network(entry: CatalogEntry) -> str | None:
    values = entry.values
    path = values.get("dataset_path")
    for url in strings(local_kwargs(entry, None).get("data_files")):
        if "://" in url and not url.startswith("file://"):
            return url
    metrics: Any = values.get("metric_list") or []
    for metric in metrics:
        if isinstance(metric, dict) and metric.get("hf_evaluate"):
            return f"metric {metric.get('metric')!r}"
    is_local = path in FILE_LOADERS or local_folder(entry) or "custom_dataset" in values
    return None if path is None or is_local else f"data set {path!r}"
