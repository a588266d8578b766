"""Turns what pydantic finds wrong with a config into sentences for the person who wrote it.

Each sentence names the key by its dotted path (`train.steps`, `faults[0].rank`), says what is
wrong, and what would be right. Neither pydantic's words nor the names of classes show.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from configs.schema import RunConfig
from configs.sections import Section

_LEAST_SIMILARITY = 0.6
_LEAST_SIMILARITY_ELSEWHERE = 0.8
_SAME_SECTION_BONUS = 0.1

Location = Sequence[int | str]


def sentences(error: ValidationError) -> dict[str, str]:
    """Dotted key -> sentence, for each thing that is wrong."""
    return {dotted(e["loc"]): _sentence(e) for e in error.errors(include_url=False)}


def booleans_for_numbers(values: Any, location: tuple[int | str, ...] = ()) -> dict[str, str]:
    """Dotted key -> sentence, for what pydantic lets pass: `steps: true` would be 1."""
    field = field_at(location)
    if location and field is None:
        return {}  # an unknown key, which is said elsewhere
    if isinstance(values, bool):
        key = dotted(location)
        if field is None or field.annotation is bool:
            return {}
        return {key: f"{key} must be a number, not {_shown(values)}"}
    pairs: Iterable[tuple[int | str, Any]] = ()
    if isinstance(values, dict):
        pairs = values.items()
    elif isinstance(values, list):
        pairs = enumerate(values)
    found: dict[str, str] = {}
    for part, value in pairs:
        found |= booleans_for_numbers(value, (*location, part))
    return found


def dotted(location: Location) -> str:
    """`faults[0].rank` for ("faults", 0, "rank")."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def field_at(location: Location) -> FieldInfo | None:
    """The schema's field at a location; None where the schema has none."""
    section: type[Section] | None = RunConfig
    field: FieldInfo | None = None
    for part in location:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part) if section else None
        if field is None:
            return None
        section = section_type(field.annotation)
    return field


def section_type(annotation: Any) -> type[Section] | None:
    """The section class that a field holds, alone or in a list; None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) is list:
        return section_type(get_args(annotation)[0])
    return None


def is_section(annotation: Any) -> bool:
    """Whether a field holds one section, whose keys continue the dotted path."""
    return get_origin(annotation) is None and section_type(annotation) is not None


def is_list(annotation: Any) -> bool:
    """Whether a field holds a list."""
    return get_origin(annotation) is list


def allows_only_text(annotation: Any) -> bool:
    """Whether a field is text, or text or nothing."""
    if get_origin(annotation) in (Union, types.UnionType):
        return all(option in (str, type(None)) for option in get_args(annotation))
    return annotation is str


def known_keys(section: type[Section] = RunConfig, prefix: str = "") -> dict[str, FieldInfo]:
    """Dotted path -> field, for every key outside of lists, sections included."""
    keys: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        keys[prefix + name] = field
        inner = section_type(field.annotation)
        if inner is not None and not is_list(field.annotation):
            keys |= known_keys(inner, f"{prefix}{name}.")
    return keys


def nearest_key(location: Location, value: Any) -> str | None:
    """The known key that an unknown one was probably meant to be, with its full path."""
    *parents, name = location
    parent = dotted(parents)
    siblings = _names_in(parents)
    candidates = {f"{parent}.{s}" if parent else s: f for s, f in siblings.items()}
    best, best_score = None, _LEAST_SIMILARITY
    for key, field in {**known_keys(), **candidates}.items():
        if not _could_hold(field, value):
            continue
        score = SequenceMatcher(None, str(name).lower(), key.rpartition(".")[2]).ratio()
        is_near = key in candidates
        if score < (_LEAST_SIMILARITY if is_near else _LEAST_SIMILARITY_ELSEWHERE):
            continue
        score += _SAME_SECTION_BONUS * is_near
        if score > best_score or best is None:
            best, best_score = key, score
    return best


def _could_hold(field: FieldInfo, value: Any) -> bool:
    if isinstance(value, list):
        return is_list(field.annotation)
    return is_section(field.annotation) is isinstance(value, dict)


def _names_in(location: Location) -> Mapping[str, FieldInfo]:
    if not location:
        return RunConfig.model_fields
    field = field_at(location)
    section = section_type(field.annotation) if field else None
    return section.model_fields if section else {}


def _sentence(error: ErrorDetails) -> str:
    location, kind, value = error["loc"], error["type"], error["input"]
    key = dotted(location)
    if kind == "extra_forbidden":
        return _unknown_key(location, value)
    if kind == "invalid_key":
        return f"the key {location[-1]!r} must be text, like {next(iter(RunConfig.model_fields))}"
    if kind == "missing":
        return f"{key} is missing: {_wanted(location)}"
    if kind == "literal_error":
        return f"{key} must be {error['ctx']['expected']}, not {_shown(value)}{_meant(location, value)}"
    if kind == "value_error":
        return f"{key} {error['ctx']['error']}, not {_shown(value)}"
    if bound := _BOUNDS.get(kind):
        return f"{key} must be {bound(error.get('ctx', {}))}, not {_shown(value)}"
    if kind.startswith("int_"):
        return f"{key} must be a whole number, not {_shown(value)}"
    if kind.startswith("float_"):
        return f"{key} must be a number, not {_shown(value)}"
    if kind.startswith("bool_"):
        return f"{key} must be true or false, not {_shown(value)}"
    if kind == "string_type":
        return f"{key} must be text, not {_shown(value)}; in quotes, {_quoted(value)}, it is text"
    if kind == "path_type":
        return f"{key} must be a path, not {_shown(value)}"
    if kind == "list_type":
        return f"{key} must be a list, like [{_item(location, value)}], not {_shown(value)}"
    if kind in ("model_type", "model_attributes_type"):
        names = ", ".join(_names_in(location))
        return f"{key} must be a section with keys out of {names}, not {_shown(value)}"
    return f"{key} is not right: {error['msg'][:1].lower()}{error['msg'][1:]}, not {_shown(value)}"


_BOUNDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda ctx: f"greater than {ctx['gt']:g}",
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']:g}",
    "less_than": lambda ctx: f"less than {ctx['lt']:g}",
    "less_than_equal": lambda ctx: f"at most {ctx['le']:g}",
    "finite_number": lambda ctx: "a finite number",
}


def _unknown_key(location: Location, value: Any) -> str:
    nearest = nearest_key(location, value)
    if nearest:
        return f"unknown key {dotted(location)}: did you mean {nearest}?"
    parent = dotted(location[:-1])
    where = f"{parent} has" if parent else "there are"
    return f"unknown key {dotted(location)}: {where} {', '.join(_names_in(location[:-1]))}"


def _wanted(location: Location) -> str:
    field = field_at(location)
    if field and get_origin(field.annotation) is Literal:
        return f"give one of {', '.join(get_args(field.annotation))}"
    description = (field.description or "") if field else ""
    return f"give it a value ({description.rstrip('.')})" if description else "give it a value"


def _meant(location: Location, value: Any) -> str:
    field = field_at(location)
    options = [str(option) for option in get_args(field.annotation)] if field else []
    close = get_close_matches(str(value).lower(), options, n=1, cutoff=_LEAST_SIMILARITY)
    return f": did you mean {close[0]}?" if close else ""


def _item(location: Location, value: Any) -> str:
    field = field_at(location)
    if field and section_type(field.annotation):
        return "{...}"
    return ", ".join(value.split()) if isinstance(value, str) and value.strip() else "a, b"


def _quoted(value: Any) -> str:
    return f'"{str(value).lower() if isinstance(value, bool) else value}"'


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a section of keys"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
