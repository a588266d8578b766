"""Looks at a Hugging Face model's folder: is it whole, and which model is it. Reads no weights."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs.errors import ConfigError
from configs.files import sha256_of_file, sha256_of_json
from configs.records import ExportRecord
from configs.rundir import EvaluationDir, read_record

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_OTHER_FORMATS = {".bin", ".pth", ".pt", ".gguf", ".h5", ".msgpack", ".onnx", ".ot"}
_NO_PART_OF_IT = {".log", ".md", ".jsonl", ".csv", ".tmp", ".lock", ".png", ".jpg", ".gif", ".pdf"}
"""No load reads these, and some of them grow."""
_LEFT_FOLDERS = {".git", ".cache", "original", "onnx", "__pycache__", "runs", "logs", "wandb"}
_SMALL_BYTES = 1 << 20
_USUAL_BYTES = 2  # of a number
_MAX_HEADER_BYTES = 100 << 20


def check_model(folder: Path) -> None:
    """ConfigError when the folder holds no whole model; the sentence names what is missing."""
    if not folder.is_dir():
        raise ConfigError(f"model {folder} is no folder: give one in Hugging Face's format")
    _json_of(folder, "config.json")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ConfigError(
            f"model {folder} has no tokenizer: it needs one of {', '.join(_TOKENIZER_FILES)}"
        )
    for name in _weight_files(folder):
        path = folder / name
        if not path.is_file():
            raise ConfigError(f"model {folder} is incomplete: {name} is missing")
        if path.suffix == ".safetensors":
            _check_safetensors(path)


def model_files(folder: Path) -> list[Path]:
    """The files that a model is loaded from, without weights in a second format, relative to `folder`."""
    files = []
    for path in sorted(_walk(folder)):
        if path.suffix not in _OTHER_FORMATS or not _has_safetensors(folder):
            files.append(path.relative_to(folder))
    return files


def model_identity(evaluation: EvaluationDir) -> str:
    """Another one for another model: the checkpoint it was exported from, small files' content, and
    names, sizes and times of the weights."""
    export = read_record(evaluation.export_path, ExportRecord)
    folder = evaluation.model_dir
    files: list[list[Any]] = []
    for name in model_files(folder) if folder.is_dir() else []:
        path = folder / name
        status = path.stat()
        small = status.st_size <= _SMALL_BYTES
        seen = sha256_of_file(path) if small else f"{status.st_size} {status.st_mtime_ns}"
        files.append([str(name), seen])
    return sha256_of_json([export.checkpoint if export else "", files])


def count_parameters(folder: Path) -> float:
    """Numbers in the model's weights, out of their headers. Without any, out of the files' size: it is
    for expectations, and whether the model is whole is another question."""
    count = 0.0
    for path in folder.glob("*.safetensors"):
        try:
            header, _ = _header(path)
            count += sum(math.prod(e["shape"]) for k, e in header.items() if k != "__metadata__")
        except (struct.error, ValueError, KeyError, TypeError):
            count += path.stat().st_size / _USUAL_BYTES
    if not count:
        count = sum(path.stat().st_size for path in folder.glob("*.bin")) / _USUAL_BYTES
    return max(count, 1.0)


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and path.name not in _LEFT_FOLDERS:
            yield from _walk(path)
        elif path.is_file() and _is_part(path):
            yield path


def _is_part(path: Path) -> bool:
    hidden = path.name.startswith((".", "events.out.tfevents"))
    return not hidden and path.suffix.lower() not in _NO_PART_OF_IT


def _has_safetensors(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def _weight_files(folder: Path) -> list[str]:
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [name]
        index = f"{name}.index.json"
        if (folder / index).is_file():
            weight_map = _json_of(folder, index).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise ConfigError(f"model {folder}: {index} names no weights")
            return sorted(set(weight_map.values()))
    raise ConfigError(f"model {folder} is incomplete: it has no {' and no '.join(_WEIGHTS)}")


def _json_of(folder: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads((folder / name).read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"model {folder} is incomplete: {name} is missing") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {folder}: {name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"model {folder}: {name} is no JSON object")
    return value


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's header, and its length."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        if header_bytes > _MAX_HEADER_BYTES:
            raise ValueError("its header is too long")
        return json.loads(file.read(header_bytes)), header_bytes


def _check_safetensors(path: Path) -> None:
    """The header tells how long the file is; one whose copy was cut off is shorter."""
    size_bytes = path.stat().st_size
    try:
        header, header_bytes = _header(path)
        ends = [entry["data_offsets"][1] for k, entry in header.items() if k != "__metadata__"]
    except (struct.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} is no safetensors file: {error}") from error
    expected_bytes = 8 + header_bytes + max(ends, default=0)
    if size_bytes != expected_bytes:
        raise ConfigError(
            f"{path} is incomplete: it has {size_bytes} bytes, its header says {expected_bytes}"
        )
