"""Imports follow the arrows of docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("flows", "tasks", "infra", "configs")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """Every module that the file imports, also inside functions."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def room_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).parts


def forbidden(path: Path) -> tuple[str, ...]:
    """Prefixes that this file must not import."""
    parts = room_of(path)
    if parts[0] == "configs":
        return ("flows", "tasks", "infra", "prefect", "torch", "mlflow", "lm_eval")
    if parts[0] == "infra":
        return ("flows", "tasks", "prefect")
    if parts[0] == "flows":
        # A flow reaches a stage through its task.py only, or an entry that is no Prefect task.
        return tuple(
            f"tasks.{module.parent.name}.{module.stem}"
            for module in (ROOT / "tasks").glob("*/*.py")
            if module.stem
            not in ("task", "__init__", "bench", "bench_checkpoint", "chaos", "goodput_plan")
            and module.stem not in ("nodecheck_simulation", "simulate_evaluation", "bench_evaluate")
            and module != ROOT / "tasks/evaluate/folder.py"
            and module.stem not in ("answer", "bench_diagnose", "bench_compress")
        )
    stage = parts[1]
    others = tuple(
        f"tasks.{folder.name}"
        for folder in (ROOT / "tasks").iterdir()
        if folder.is_dir() and folder.name not in (stage, "__pycache__")
    )
    if parts[-1] == "task.py" or parts[-1].startswith("task_"):  # what task.py is made of
        return ("flows", *others)
    return ("flows", "infra", "prefect", "mlflow", *others)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    bad = {
        f"{module} (rule: {prefix})"
        for module in imported_modules(path)
        for prefix in forbidden(path)
        if module == prefix or module.startswith(prefix + ".")
    }
    assert not bad, f"{path.relative_to(ROOT)} imports {sorted(bad)}"


def test_mlflow_is_only_known_to_tracking() -> None:
    for path in SOURCES:
        if room_of(path)[:2] != ("infra", "track"):
            assert not any(m.split(".")[0] == "mlflow" for m in imported_modules(path)), path


def test_source_files_keep_to_one_subject() -> None:
    """A file that outgrows 300 lines has a second subject that wants a file of its own."""
    long = {p.relative_to(ROOT): n for p in SOURCES if (n := len(p.read_text().splitlines())) > 320}
    assert not long
