"""Which files confined work may read (Landlock): Python's, the system's programs, and the task's.

Landlock needs neither privileges nor namespaces, but Linux 5.13 and a kernel that has it switched on. What
is not allowed can still be named and asked for its size (`stat`), not opened, listed or run.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

# The same numbers on all machines.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_EVERYTHING = (1 << 13) - 1
"""Of Landlock's first version: read, write, make and remove anything."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE

_PACKAGES = Path(__file__).resolve().parents[1]
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/proc")
_SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/group",
    "/etc/mime.types",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
)
_SETTINGS = ("alternatives", "java*", "perl", "php", "R")
"""Of programs that a metric may start, below /etc."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm")
_OF_HUB = ("modules", "metrics", "evaluate")
"""Of Hugging Face's cache. The user's token lies beside them."""


def is_available() -> bool:
    """Whether this kernel has Landlock."""
    return bool(_libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION) >= 1)


def refuse_other_files(readable: Iterable[Path], scratch: Path) -> bool:
    """Refuse this process and all that come from it to open files, for good, but these, those in the
    scratch folder, and a few devices; whether the kernel does."""
    handled = struct.pack("Q", _EVERYTHING)
    rules = _libc.syscall(_CREATE_RULESET, handled, len(handled), 0)
    if rules < 0:
        return False
    try:
        for path in readable:
            _allow(rules, path, _READ)
        for path in (scratch, *(Path("/dev") / name for name in _DEVICES)):
            _allow(rules, path, _EVERYTHING)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(_libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def needed_paths() -> Iterator[Path]:
    """What Python, its packages and the programs on PATH are made of, where it exists or not."""
    yield from map(Path, (*_SYSTEM, *_SYSTEM_FILES))
    for name in _SETTINGS:
        yield from Path("/etc").glob(name)
    yield from map(Path, {sys.prefix, sys.base_prefix, sys.exec_prefix})
    # A checkout may have anything beside the code: of Overland's own, only its packages.
    yield from (_PACKAGES, _PACKAGES.parent / "configs")
    places = [*sys.path, *os.get_exec_path(), *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    for place in map(Path, filter(None, places)):
        if not (place / "pyproject.toml").is_file():
            yield place
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    yield from (home / name for name in _OF_HUB)


def _allow(rules: int, path: Path, access: int) -> None:
    """Allow it for a file, or for a folder and all below; where there is none, nothing."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = access if path.is_dir() else access & _OF_FILES
            rule = struct.pack("=Qi", allowed, descriptor)
            _libc.syscall(_ADD_RULE, rules, _BENEATH, rule, 0)
        finally:
            os.close(descriptor)
