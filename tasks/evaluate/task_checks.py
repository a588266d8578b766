"""Checks tasks before a model is loaded or a GPU taken: all mistakes that their files show, at once.

Nothing of lm-eval is imported and no code of the task is run. What only that can tell (a function that
raises, an odd document) is seen while the plan is made, before the model is loaded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from configs.errors import ConfigError
from configs.schema import EvaluateConfig
from tasks.evaluate.catalog import Catalog, CatalogEntry, build_catalog
from tasks.evaluate.harness_source import known_filters, known_keys, nearest
from tasks.evaluate.metrics import group_problems, metric_problems
from tasks.evaluate.task_data import columns_of, file_problems, some_columns, split_problems
from tasks.evaluate.task_files import FunctionTag
from tasks.evaluate.task_functions import function_problems, registers

_OUTPUT_TYPES = ("loglikelihood", "loglikelihood_rolling", "generate_until", "multiple_choice")
_NO_FIELDS = {"tag", "group", "task_list", "include", "class"}
"""Keys that lm-eval reads beside those of a task's config."""
_TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice", "doc_to_decontamination_query")


def check_tasks(config: EvaluateConfig, *, of_run: bool = True) -> None:
    """Raise ConfigError, a line for each mistake, when a task does not exist or cannot run here.

    `of_run`: there is held-out text, which Overland's own tasks ask about.
    """
    if not config.tasks and not of_run:
        raise ConfigError("no task is named: say which, like --tasks a,b,c")
    if not config.tasks:
        raise ConfigError(
            "evaluate.tasks is empty: name at least one task, or set evaluate.enabled to false"
        )
    catalog = build_catalog(config.task_dirs, of_run=of_run)
    own = [e for e in catalog.reach(config.tasks).entries if e.is_own and not e.is_group]
    if own and not of_run:
        names = ", ".join(repr(entry.name) for entry in own)
        raise ConfigError(
            f"evaluation task {names} asks about text that a run has held out, and a model's folder "
            "has none: evaluate the run's directory, or give other tasks"
        )
    checked_entries(catalog, config.tasks)


def checked_entries(catalog: Catalog, names: Sequence[str]) -> list[CatalogEntry]:
    """The tasks and groups that the names need; ConfigError, a line for each mistake, when one does not
    exist or cannot run here."""
    reached = catalog.reach(names)
    problems = list(reached.problems)
    for entry in reached.entries:
        problems += problems_of(entry, overridden=entry.name in reached.overridden)
    if problems:
        raise ConfigError("\n".join(problems))
    return reached.entries


def problems_of(entry: CatalogEntry, *, overridden: bool = False) -> list[str]:
    """A sentence for each mistake. Of a task whose values a group changes, only what holds all the same."""
    found = [
        *(
            group_problems(entry)
            if entry.is_group
            else metric_problems(entry, overridden=overridden)
        )
    ]
    found += file_problems(entry)
    if not entry.is_group and not overridden and "class" not in entry.values:
        found += _key_problems(entry)
        found += _document_key_problems(entry)
        found += split_problems(entry)
        found += _filter_problems(entry)
        found += _template_problems(entry)
    found += function_problems(entry)
    return [f"evaluation task {entry.name!r} ({entry.path}): {problem}" for problem in found]


def _key_problems(entry: CatalogEntry) -> Iterator[str]:
    values, known = entry.values, known_keys()
    for key in values if known else ():
        if key not in known | _NO_FIELDS:
            hint = nearest(str(key), known, "remove it")
            yield f"{key} is nothing that lm-eval knows of a task: {hint}"
    kind = values.get("output_type", "generate_until")
    if kind not in _OUTPUT_TYPES:
        hint = nearest(str(kind), _OUTPUT_TYPES, f"it must be one of {', '.join(_OUTPUT_TYPES)}")
        yield f"output_type {kind!r} is none: {hint}"
    if kind == "multiple_choice" and not {"doc_to_choice", "use_prompt"} & values.keys():
        yield "output_type multiple_choice needs doc_to_choice: a column, a list or a template"


def _document_key_problems(entry: CatalogEntry) -> Iterator[str]:
    """Keys without which lm-eval can make nothing of a document, and a doc_to_choice that is none."""
    values = entry.values
    if "use_prompt" in values:
        return
    for key in ("doc_to_text", "doc_to_target"):
        if values.get(key) is None:
            yield f"{key} is missing: give it a column, a template or a !function"
    choices, columns = values.get("doc_to_choice"), columns_of(entry)
    if not isinstance(choices, str) or isinstance(choices, FunctionTag) or columns is None:
        return
    if choices not in columns and "{" not in choices and not _is_literal(choices):
        yield (
            f"doc_to_choice {choices!r} is a column that no document has, and no list: "
            f"they have {some_columns(columns)}"
        )


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _filter_problems(entry: CatalogEntry) -> Iterator[str]:
    known = frozenset() if registers(entry, "filter") else known_filters()
    filters = entry.values.get("filter_list")
    for pipeline in filters if isinstance(filters, list) else ():
        steps = pipeline.get("filter") if isinstance(pipeline, dict) else None
        if not isinstance(steps, list) or "name" not in pipeline:
            yield "an entry of filter_list is not {name: ..., filter: [{function: ...}]}"
            continue
        where = f"filter {pipeline['name']!r}"
        for step in steps:
            name = step.get("function") if isinstance(step, dict) else None
            is_name = isinstance(name, str) and (isinstance(name, FunctionTag) or name in known)
            if known and not is_name:
                hint = nearest(str(name), known, f"known are {', '.join(sorted(known))}")
                yield f"{where} has function {name!r}, which lm-eval does not know: {hint}"
            pattern = step.get("regex_pattern") if isinstance(step, dict) else None
            if isinstance(pattern, str) and (problem := _pattern_problem(pattern)) is not None:
                yield f"{where} has regex_pattern {pattern!r}, which is none: {problem}"


def _pattern_problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        return f"{error.msg}{where}"
    return None


def _template_problems(entry: CatalogEntry) -> Iterator[str]:
    templates = {key: entry.values.get(key) for key in _TEMPLATES}
    texts = {k: t for k, t in templates.items() if isinstance(t, str) and re.search(r"\{[{%]", t)}
    if not texts:
        return
    import jinja2  # not for everybody who evaluates nothing of their own
    from jinja2 import meta

    environment = jinja2.Environment()  # noqa: S701 (nothing is rendered)
    columns = columns_of(entry)
    for key, text in texts.items():
        try:
            parsed = environment.parse(text)
        except jinja2.TemplateSyntaxError as error:
            yield f"{key} is no template: {error.message} in its line {error.lineno}"
            continue
        missing = (
            meta.find_undeclared_variables(parsed) - (columns or set()) - {*environment.globals}
        )
        if columns is not None and missing and not re.search(r"\bdefined\b|\bdefault\b", text):
            yield (
                f"{key} asks for {', '.join(sorted(missing))}, which no document has: "
                f"they have {some_columns(columns)}"
            )
