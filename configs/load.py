"""Reads a run's config: a YAML file, with `key=value` overrides from the command line on top.

    load_config(Path("configs/quickstart.yaml"), ["train.steps=50", "evaluate.tasks=[a, b]"])

Relative paths (`run_dir`, `data.paths`, `data.tokenizer.path`, `evaluate.task_dirs`) are relative to
the working directory, in the file as on the command line, and `~` is the home folder. The loaded
config holds them absolute, so a dump of it means the same anywhere on the machine.

A section or list with nothing below it (all commented out) has its defaults.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs import explain, plain_yaml
from configs.errors import ConfigError
from configs.files import resolved
from configs.schema import RunConfig

_MAX_FILE_BYTES = 1 << 20

# What changes the loss curve, and so must not change when a run directory is continued ...
_FIXED_SECTIONS = ("seed", "data", "model", "train")
# ... but for what only changes speed, memory, or what is measured beside it.
_CHANGEABLE_KEYS = frozenset(
    {
        "data.workers",
        "train.micro_batch_size",
        "train.validation_interval_steps",
        "train.validation_batches",
        "train.peak_tflops",
        "train.process_group_timeout_s",
    }
)

Difference = tuple[str, Any, Any]


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read the config at `path` (None: the defaults) and apply `overrides`; ConfigError says all that is
    wrong, a line each."""
    values = _parse_file(path) if path is not None else {}
    sources: dict[str, str] = {}
    for override in overrides:
        for key in _apply_override(values, override):
            sources[key] = f"override {override!r}"
    _drop_empty_sections(values)
    found = explain.booleans_for_numbers(values)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        found |= explain.sentences(error)
    if found:
        lines = (f"{_source(key, sources, path)}: {text}" for key, text in found.items())
        raise ConfigError("\n".join(lines))
    return absolute_paths(config)


def dump_config(config: RunConfig) -> str:
    """The whole config as YAML, defaults included; `load_config` reads it back to an equal one."""
    return plain_yaml.dump(config.model_dump(mode="json"))


def absolute_paths(config: RunConfig) -> RunConfig:
    """The config with every path in it absolute, relative ones taken from the working directory."""
    tokenizer, evaluate = config.data.tokenizer, config.evaluate
    if tokenizer.path is not None:
        tokenizer = tokenizer.model_copy(update={"path": resolved(tokenizer.path)})
    paths = [_absolute_pattern(text) for text in config.data.paths]
    data = config.data.model_copy(update={"tokenizer": tokenizer, "paths": paths})
    task_dirs = [resolved(folder) for folder in evaluate.task_dirs]
    evaluate = evaluate.model_copy(update={"task_dirs": task_dirs})
    run_dir = config.resolved_run_dir()
    return config.model_copy(update={"run_dir": run_dir, "data": data, "evaluate": evaluate})


def config_differences(old: RunConfig, new: RunConfig) -> list[Difference]:
    """(dotted key, old value, new value) for each key that differs; lists are compared whole."""
    old_values, new_values = (_flatten(c.model_dump(mode="json")) for c in (old, new))
    return [
        (key, old_values[key], new_values[key])
        for key in old_values
        if old_values[key] != new_values[key]
    ]


def fixed_differences(old: RunConfig, new: RunConfig) -> list[Difference]:
    """The differences in keys that must not change when a run directory is continued.

    Fixed is what changes the loss curve: data, model, seed, optimizer, batch, schedule (`train.steps`
    is part of it). Free are `run_dir` and `name`, how the work is spread over processes, faults,
    recovery, checkpoints, evaluation, tracking, the launcher.
    """
    return [d for d in config_differences(old, new) if _is_fixed(d[0])]


def _is_fixed(key: str) -> bool:
    return key.partition(".")[0] in _FIXED_SECTIONS and key not in _CHANGEABLE_KEYS


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


# --- the file -------------------------------------------------------------------------------------


def _parse_file(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    try:
        values = plain_yaml.parse(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if values is None:
        raise ConfigError(f"{path} is empty: it must hold sections like data, model and train")
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} must hold sections like 'train:' with keys below them, not {_kind(values)}"
        )
    return values


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: give the config file{_an_example(path)}")
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist{_nearest_file(path)}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than 1 MiB: a config is a small YAML file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text (byte {error.start}): a config is a YAML file"
        ) from error
    if "\0" in text:
        raise ConfigError(f"{path} is a binary file: a config is a YAML file")
    return text


def _an_example(folder: Path) -> str:
    files = sorted(folder.glob("*.yaml"))
    return f", like {files[0]}" if files else ""


def _nearest_file(path: Path) -> str:
    names = [p.name for p in path.parent.glob("*.y*ml")]
    close = get_close_matches(path.name, names, n=1)
    return (
        f": did you mean {path.parent / close[0]}?" if close else ": give the path of a YAML file"
    )


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {str(value)[:60]!r}"


def _source(key: str, sources: Mapping[str, str], path: Path | None) -> str:
    """The override that set the key, or what the key is in; else the file."""
    for overridden, source in reversed(list(sources.items())):
        if key == overridden or key.startswith((f"{overridden}.", f"{overridden}[")):
            return source
    return str(path or "the defaults")


# --- overrides ------------------------------------------------------------------------------------


def _apply_override(values: dict[str, Any], override: str) -> list[str]:
    """Set one key in `values`; returns the key, and the sections above it that the file has not."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r} is not key=value, like train.steps=50")
    if not text.strip():
        raise ConfigError(
            f"override {override!r} has no value: give one, or null, [] or '' for none"
        )
    section, new = values, [key.strip()]
    for depth, part in enumerate(parts[:-1], start=1):
        _refuse_if_no_section(parts[:depth], override)
        if section.get(part) is None:
            section[part] = {}
            new.append(".".join(parts[:depth]))
        section = section[part]
        if not isinstance(section, dict):
            return []  # the file has a wrong value there, which is said later
    section[parts[-1]] = _parse_value(parts, text, override)
    return new


def _refuse_if_no_section(parts: list[str], override: str) -> None:
    field, key = explain.field_at(parts), ".".join(parts)
    if field is None:
        return  # unknown: said later, with the nearest known key
    if explain.is_list(field.annotation):
        raise ConfigError(
            f"override {override!r}: {key} is a list: give it whole, like {key}=[...]"
        )
    if not explain.is_section(field.annotation):
        raise ConfigError(f"override {override!r}: {key} is a value, not a section: give {key}=...")


def _parse_value(parts: list[str], text: str, override: str) -> Any:
    try:
        value = plain_yaml.parse(text)
    except ValueError as error:
        raise ConfigError(f"override {override!r}: the value is not valid YAML: {error}") from error
    field = explain.field_at(parts)
    is_scalar = isinstance(value, bool | int | float)
    if field is not None and is_scalar and explain.allows_only_text(field.annotation):
        return text.strip()  # name=123 can only mean the text
    return value


# --- values ---------------------------------------------------------------------------------------


def _drop_empty_sections(values: dict[str, Any], location: tuple[str, ...] = ()) -> None:
    """A section or list whose entries are all commented out has its defaults."""
    for name, value in list(values.items()):
        field = explain.field_at((*location, str(name)))
        if field is None or explain.section_type(field.annotation) is None:
            continue
        if value is None:
            del values[name]
        elif isinstance(value, dict) and explain.is_section(field.annotation):
            _drop_empty_sections(value, (*location, str(name)))


def _absolute_pattern(text: str) -> str:
    if "://" in text:
        return text
    path = Path(text).expanduser()
    if path.is_absolute():
        return str(path)
    here = str(Path.cwd())
    return str(Path(glob.escape(here) if glob.has_magic(text) else here) / path)
