"""Python exceptions in logs: real tracebacks of every built-in type, chains, wrappers."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path

import pytest

from configs.records import Verdict
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.diagnose import diagnose_files
from tasks.diagnose.exception_types import class_of_type


def _run(tmp_path: Path, source: str) -> Verdict:
    """Diagnose what a Python program really prints when it fails."""
    script, log = tmp_path / "script.py", tmp_path / "out.log"
    script.write_text(source)
    with open(log, "wb") as file:
        subprocess.run([sys.executable, str(script)], stdout=file, stderr=file, check=False)
    return diagnose_files([log])


def _plain_exceptions() -> list[str]:
    found = []
    for name, value in vars(builtins).items():
        if isinstance(value, type) and issubclass(value, BaseException):
            try:
                value("injected fault")
            except TypeError:
                continue
            found.append(name)
    return [n for n in found if n not in ("SystemExit", "GeneratorExit", "BaseException")]


def test_every_builtin_exception_gets_its_class(tmp_path: Path) -> None:
    """One process prints the traceback of each; each is diagnosed by itself."""
    names = _plain_exceptions()
    script = tmp_path / "all.py"
    script.write_text(
        "import sys, traceback, pathlib\n"
        "for name in sys.argv[2:]:\n"
        "    try:\n"
        "        raise getattr(__builtins__, name)('injected fault')\n"
        "    except BaseException:\n"
        "        pathlib.Path(sys.argv[1], name + '.log').write_text(traceback.format_exc())\n"
    )
    subprocess.run([sys.executable, str(script), str(tmp_path), *names], check=True)
    wrong = {}
    for name in names:
        verdict = diagnose_files([tmp_path / f"{name}.log"])
        expected = name if name in CLASSES else class_of_type(name)
        if verdict.failure_class != expected or "injected fault" not in verdict.root_cause_text:
            wrong[name] = (verdict.failure_class, expected)
    assert not wrong
    assert {n for n in names if n in CLASSES} >= {
        "KeyError",
        "OSError",
        "RuntimeError",
        "TypeError",
    }


@pytest.mark.parametrize(
    ("type_name", "failure_class"),
    [
        ("ModuleNotFoundError", "ImportError"),
        ("IsADirectoryError", "OSError"),
        ("UnicodeDecodeError", "ValueError"),
        ("NotImplementedError", "RuntimeError"),
        ("IndentationError", "SyntaxError"),
        ("BrokenPipeError", "ConnectionError"),
        ("MemoryError", "OutOfMemoryError"),
        ("OverflowError", "RuntimeError"),
        ("torch.OutOfMemoryError", "OutOfMemoryError"),
        ("omegaconf.errors.ConfigKeyError", "KeyError"),
        ("pydantic_core._pydantic_core.ValidationError", "ValueError"),
        ("mine.Surprise", "RuntimeError"),
    ],
)
def test_other_types_take_the_nearest_class(type_name: str, failure_class: str) -> None:
    assert class_of_type(type_name) == failure_class


def test_a_direct_cause_wins_over_its_wrapper(tmp_path: Path) -> None:
    verdict = _run(
        tmp_path,
        "try:\n    open('/nonexistent/x')\n"
        "except OSError as e:\n    raise RuntimeError('could not load') from e\n",
    )
    assert verdict.failure_class == "FileNotFoundError"
    assert verdict.root_cause_text.startswith("FileNotFoundError: [Errno 2]")


def test_a_failure_while_handling_a_cache_miss_is_itself_the_cause(tmp_path: Path) -> None:
    verdict = _run(
        tmp_path, "try:\n    {}['cached']\nexcept KeyError:\n    raise PermissionError(13, 'no')\n"
    )
    assert verdict.failure_class == "PermissionError"


def test_a_failure_while_cleaning_up_is_not_the_cause(tmp_path: Path) -> None:
    verdict = _run(
        tmp_path, "try:\n    1 / 0\nfinally:\n    raise RuntimeError('shutdown failed')\n"
    )
    assert verdict.failure_class == "ZeroDivisionError"


def test_an_exception_out_of_a_worker_process_is_found_in_its_message(tmp_path: Path) -> None:
    verdict = _run(
        tmp_path,
        "import traceback\n"
        "try:\n    [][3]\n"
        "except IndexError:\n    inner = 'Original ' + traceback.format_exc()\n"
        "raise RuntimeError('Caught IndexError in DataLoader worker process 0.\\n' + inner)\n",
    )
    assert verdict.failure_class == "IndexError"


def test_an_exception_group_shows_what_it_holds(tmp_path: Path) -> None:
    verdict = _run(tmp_path, "raise ExceptionGroup('several', [TypeError('a'), KeyError('b')])\n")
    assert verdict.failure_class == "TypeError"


def test_a_disk_that_is_really_full_is_an_os_error(tmp_path: Path) -> None:
    verdict = _run(tmp_path, "with open('/dev/full', 'w') as f:\n    f.write('x')\n")
    assert (verdict.failure_class, verdict.method) == ("OSError", "disk_full")
    assert verdict.action == "fix_by_user"


def test_weights_that_cannot_be_read_are_a_loading_error(tmp_path: Path) -> None:
    verdict = _run(
        tmp_path,
        "class Model:\n"
        "    def load_state_dict(self, state):\n        return state['layers.0.weight']\n"
        "Model().load_state_dict({})\n",
    )
    assert verdict.failure_class == "ModelLoadingError"


def test_wrong_arguments_of_a_real_parser(tmp_path: Path) -> None:
    verdict = _run(
        tmp_path,
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"
        "p.parse_args(['--lr', 'x'])\n",
    )
    assert verdict.failure_class == "ArgumentError"


def test_an_unknown_type_is_a_runtime_error_and_is_quoted(tmp_path: Path) -> None:
    verdict = _run(
        tmp_path, "raise type('Surprise', (Exception,), {'__module__': 'mine'})('injected fault')\n"
    )
    assert (verdict.failure_class, verdict.action) == ("RuntimeError", "fix_by_user")
    assert verdict.root_cause_text == "mine.Surprise: injected fault"


def test_two_ranks_whose_tracebacks_are_interleaved(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "[rank0]: Traceback (most recent call last):\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank0]:   File "a.py", line 1, in f\n'
        '[rank1]:   File "b.py", line 2, in g\n'
        "[rank1]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer\n"
        "[rank0]:     g()\n"
        "[rank0]: NameError: name 'x' is not defined\n"
    )
    verdict = diagnose_files([log])
    assert (verdict.failure_class, verdict.faulty_rank) == ("NameError", 0)
    assert verdict.root_cause_line == 7


@pytest.mark.parametrize(
    ("source", "failure_class"),
    [
        (
            "def teardown():\n    {}['WORLD_SIZE']\ntry:\n    [].mask\nexcept Exception:\n    teardown()\n",
            "AttributeError",
        ),
        (
            "try:\n    [].mask\nexcept Exception:\n    raise RuntimeError('building the model failed')\n",
            "AttributeError",
        ),
        (
            "try:\n    {}['x']\nexcept KeyError:\n    raise ValueError('no such corpus as x')\n",
            "ValueError",
        ),
        (
            "try:\n    {}['x']\nexcept KeyError:\n    raise RuntimeError('corpus x is not in the catalogue')\n",
            "RuntimeError",
        ),
    ],
)
def test_what_tells_nothing_of_itself_only_follows(
    tmp_path: Path, source: str, failure_class: str
) -> None:
    assert _run(tmp_path, source).failure_class == failure_class
