"""The host that a line of the system's log is about, by where such logs put its name."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tasks.diagnose.host_names import NAME, is_a_device
from tasks.diagnose.patterns import compile_pattern

NO_HOSTS = ("localhost", "127.0.0.1", "kernel", "localhost.localdomain", "None", "names", "list")
_SYSTEM_LINES = (
    compile_pattern(
        rf"(?:^|[\s\[\]])(?P<node>{NAME})\]?:? (?:kernel|dmesg|nv-fabricmanager|nvidia-\w+)(?:\[\d+\])?:"
    ),
    compile_pattern(
        rf"(?:^|[\s\]])(?P<node>{NAME}) (?:[A-Z][a-z]{{2}} +\d+ [\d:]+|\d{{4}}-\S+) kernel:"
    ),
    compile_pattern(rf"^\[?(?P<node>{NAME})(?:\]|:) (?:\[ *\d+\.\d+\] |NVRM: )"),
    compile_pattern(
        rf"^\[ *\d+\.\d{{3,9}}\] (?P<node>{NAME}) (?:mlx\d_core|NVRM:|nvme|pcieport|EDAC|mce:|XFS|EXT4-fs|INFO:|"
        r"watchdog:|BUG:|\w+ invoked|Out of memory|Memory cgroup|oom-kill|nvidia)"
    ),
    compile_pattern(rf"(?i)\bhost(?:_?name)?=\"(?P<node>{NAME})\""),
    compile_pattern(rf"\b(?:kernel|kubelet) (?P<node>{NAME}): "),
    compile_pattern(r"(?:^|\s)[a-z][\w-]*\[(?P<node>[A-Za-z][\w.]*-[\w.-]*)\]: "),
    compile_pattern(rf"\b(?:instance|host|node|hostname)(?:[ :=]+|/)(?P<node>{NAME})"),
    compile_pattern(rf"^(?:\S+ std(?:out|err) [FP] )?\[[\w-]+\] (?P<node>{NAME})[ :]"),
)

_SERVICE = compile_pattern(
    r"^(?:(?P<daemon>slurmstepd|slurmd)|bmc|ipmi|idrac|ilo|console|kubelet|raylet|mgmt)-(?P<host>[A-Za-z][\w.-]*)$|"
    r"^(?P<of>[A-Za-z][\w.-]*\w)-(?:bmc|ipmi|idrac|ilo|console|mgmt|oob)$"
)


def node_of_system_line(text: str, known: AbstractSet[str]) -> str | None:
    """The name where a host's stands, if it can be one; `known`: names that are hosts'."""
    for pattern in _SYSTEM_LINES:
        match = pattern.search(text)
        if match and match["node"] not in NO_HOSTS and _may_be_host(match["node"], known):
            return str(match["node"])
    return None


def _may_be_host(name: str, known: AbstractSet[str]) -> bool:
    """Whether a name where a host's stands is one: known, or such as hosts have, and devices and times not."""
    if name in known:
        return True
    return name[0].isalpha() and any(c.isdigit() for c in name) and not is_a_device(name)


def host_of_service(name: str) -> tuple[str, bool]:
    """The host that a daemon or a management controller is called after, and whether it surely is."""
    match = _SERVICE.match(name)
    if match is None:
        return name, False
    return match["host"] or match["of"], match["daemon"] is not None
