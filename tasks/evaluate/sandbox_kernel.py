"""The system calls of :mod:`tasks.evaluate.sandbox`. Each says whether the kernel granted it."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

_NEW_NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x08000000
"""User, network, process and IPC."""
_NEW_MOUNTS = 0x00020000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 1, 4, 38, 24
_MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x4000, 1 << 18, 2, 4, 8
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_LAST_CAPABILITY = 63
_CAPSET = {"x86_64": 126, "aarch64": 91}


def unshare() -> bool:
    """Put the children of this process into namespaces of their own. It must have one thread."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_NAMESPACES) != 0:
        return False
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text)
    return True


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def refuse_inspection() -> None:
    """Keep other processes of the same user from this one's memory and descriptors, through /proc too."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def hide_files(scratch: Path, scratch_bytes: int) -> list[str]:
    """Make every file read-only except new, empty ones in `scratch` and /dev/shm, and have /proc show
    the processes of this namespace; returns what failed."""
    missing = []
    # Mounts of its own only now: one with a file that is open for writing cannot become read-only.
    private = _libc.unshare(_NEW_MOUNTS) == 0
    private = private and _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0))
    read_only = private and (
        _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, 32) == 0
    )
    if not read_only:
        missing.append("read-only files")
    options = f"size={scratch_bytes},mode=1777".encode()
    flags = _MS_NOSUID | _MS_NODEV
    for folder in (scratch, Path("/dev/shm")):  # noqa: S108  (locks between processes live there)
        if not private or _libc.mount(b"tmpfs", bytes(folder), b"tmpfs", flags, options) != 0:
            missing.append(f"a scratch folder at {folder}")
    if not private or not _hide_processes(flags | _MS_NOEXEC):
        missing.append("a /proc of its own")
    return missing


def _hide_processes(flags: int) -> bool:
    if _libc.mount(b"proc", b"/proc", b"proc", flags, None) == 0:
        return True
    # Where parts of /proc are masked, as in containers, the kernel grants no new one: an empty folder.
    return bool(_libc.mount(b"tmpfs", b"/proc", b"tmpfs", flags, b"size=4096,mode=555") == 0)


def drop_privileges() -> None:
    """Give up what a namespace's root may do, and every way to get it back."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    capset = _CAPSET.get(platform.machine())
    if capset is not None:
        header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
        nothing = ctypes.create_string_buffer(24)
        _libc.syscall(capset, header, nothing)
