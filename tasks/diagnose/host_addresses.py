"""Hosts and addresses that stand side by side in a line: in a table, a list, a file of hosts."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.diagnose.host_names import is_a_device, is_an_identifier, short_name
from tasks.diagnose.patterns import compile_pattern

_HOST_ADDRESS = compile_pattern(
    r"(?P<host>[A-Za-z][\w-]*\d[\w.-]*),?:? (?:ip[ =:]+|\()?(?P<address>\d+\.\d+\.\d+\.\d+)\b"
)
_NAMED_ADDRESS = compile_pattern(
    r"(?:^|[\s,;])(?P<host>[a-z][a-z-]*\d[a-z0-9.-]*)=(?P<address>\d+\.\d+\.\d+\.\d+)\b"
)
_ADDRESS_HOST = compile_pattern(
    r"(?:^|[\s,;])(?P<address>\d+\.\d+\.\d+\.\d+)(?: ?(?:=|->) ?| \()(?P<host>[a-z][a-z-]*\d[a-z0-9.-]*)\b"
)
_HOST_WITH_ADDRESS = compile_pattern(
    r"\bhost(?:name)?[=:] ?(?P<host>[A-Za-z][\w.-]*),? (?:host_)?(?:ip|addr\w*)[=:] ?(?P<address>\d+\.\d+\.\d+\.\d+)\b"
)
_PAIRS = (_HOST_WITH_ADDRESS, _NAMED_ADDRESS, _ADDRESS_HOST)
_FILE_OF_HOSTS = compile_pattern(
    r"(?:^|\s)(?P<address>\d+\.\d+\.\d+\.\d+)\s+(?P<host>[A-Za-z][\w-]*(?:\.[\w-]+)*)\s+(?P<alias>[A-Za-z][\w.-]*)\s*(?:#|$)"
)
"""As /etc/hosts has it: a name and the same name without its domain, or the other way round."""
_NO_NAMES = frozenset(
    ["rank", "addr", "ip", "eth", "ib", "ens", "enp", "eno", "bond", "hsn", "docker", "port"]
)
DOTS_OF_AN_ADDRESS = 3


def addresses_in(text: str) -> Iterator[tuple[str, str]]:
    """All addresses with the host that the line names beside each."""
    rest = text
    while match := _HOST_ADDRESS.search(rest):
        if not is_a_device(match["host"]) and not is_an_identifier(match["host"]):
            yield match["address"], match["host"]
        rest = rest[match.end() :]
    for pattern in _PAIRS:
        rest = text
        while match := pattern.search(rest):
            if match["host"].rstrip("0123456789") not in _NO_NAMES:
                yield match["address"], match["host"]
            rest = rest[match.end() :]
    if (match := _FILE_OF_HOSTS.search(text)) is not None:
        host, alias = match["host"], match["alias"]
        if host != alias and short_name(host) == short_name(alias) != "localhost":
            yield match["address"], host


def tells_address(body: str) -> bool:
    """Whether the line may name a host beside an address."""
    if body.count(".") < DOTS_OF_AN_ADDRESS:
        return False
    return any(p.search(body) for p in (_HOST_ADDRESS, *_PAIRS, _FILE_OF_HOSTS))
