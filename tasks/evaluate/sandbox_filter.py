"""The filter of system calls (seccomp) for :mod:`tasks.evaluate.sandbox`.

A refused call fails; nothing is ended. What is left is files, memory, processes of one's own, pipes and
pairs of connected stream sockets.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _ANSWER = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_CALL, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_X32_CALLS = 0x40000000
_NEW_NAMESPACE = 0x7E020000
_TYPE_MASK, _SOCK_STREAM = 0xF, 1

# The same numbers everywhere: io_uring, pidfd_getfd, the new mount calls.
_REFUSED_ANYWHERE = (425, 426, 427, 438, 428, 429, 430, 431, 432, 433, 442)
_CLONE3 = 435
# Other processes, keys, mounts and namespaces, and what has often been a way into the kernel:
# socket, connect, ptrace, process_vm_readv and _writev, unshare, setns, mount, umount2, pivot_root,
# chroot, add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, open_by_handle_at
_REFUSED = {
    "x86_64": (
        *(41, 42, 101, 310, 311, 272, 308, 165, 166, 155, 161, 248, 249, 250),
        *(321, 298, 323, 304),
    ),
    "aarch64": (
        *(198, 203, 117, 270, 271, 97, 268, 40, 39, 41, 51, 217, 218, 219),
        *(280, 241, 282, 265),
    ),
}
# machine -> its number in seccomp's data, clone, socketpair
_MACHINES = {"x86_64": (0xC000003E, 56, 53), "aarch64": (0xC00000B7, 220, 199)}

_Line = tuple[int, int, int, int]


def refuse_calls() -> bool:
    """Have the kernel refuse these calls to this process and all that come from it, for good; whether
    it does."""
    machine = platform.machine()
    if machine not in _MACHINES:
        return False
    program = _program(machine)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    head = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    )
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    address = ctypes.c_void_p(ctypes.addressof(head))
    return bool(_libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, address, 0, 0) == 0)


def _program(machine: str) -> list[_Line]:
    architecture, clone, socketpair = _MACHINES[machine]
    refuse = _REFUSE | errno.EPERM
    program: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_ANSWER, 0, 0, refuse),
        (_LOAD, 0, 0, _CALL),
        (_AT_LEAST, 0, 1, _X32_CALLS),
        (_ANSWER, 0, 0, refuse),
    ]
    for call in (*_REFUSED[machine], *_REFUSED_ANYWHERE):
        program += [(_EQUAL, 0, 1, call), (_ANSWER, 0, 0, refuse)]
    return [
        *program,
        # The C library then calls clone, whose flags can be seen.
        (_EQUAL, 0, 1, _CLONE3),
        (_ANSWER, 0, 0, _REFUSE | errno.ENOSYS),
        (_EQUAL, 0, 4, clone),
        (_LOAD, 0, 0, _ARGUMENT_0),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACE),
        (_ANSWER, 0, 0, refuse),
        (_ANSWER, 0, 0, _ALLOW),
        # One of a pair of datagram sockets may send to any other: only streams.
        (_EQUAL, 0, 4, socketpair),
        (_LOAD, 0, 0, _ARGUMENT_1),
        (_AND, 0, 0, _TYPE_MASK),
        (_EQUAL, 1, 0, _SOCK_STREAM),
        (_ANSWER, 0, 0, refuse),
        (_ANSWER, 0, 0, _ALLOW),
    ]
