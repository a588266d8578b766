"""Which host runs which rank, as the logs tell: start-up lines, NCCL's own, Slurm's."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_RANK_HOST = compile_pattern(
    r"\brank[ =:]+(?P<rank>\d+)\b.{0,20}?\bhost[ =:]+(?P<host>[A-Za-z][\w.-]*)"
)
_HOST_ADDRESS = compile_pattern(
    r"(?P<host>[A-Za-z][\w-]*\d[\w.-]*),?:? (?:ip[ =:]+|\()?(?P<address>\d+\.\d+\.\d+\.\d+)\b"
)
_TASK_HOST = compile_pattern(r"error: (?P<host>[A-Za-z][\w.-]*): tasks? [\d,-]+: ")
_MAX_ADDRESSES = 50_000
_DOTS_OF_AN_ADDRESS = 3


@dataclass
class Topology:
    """Hosts by rank and by address."""

    by_rank: dict[int, str] = field(default_factory=dict)
    by_address: dict[str, str] = field(default_factory=dict)
    failed_task_hosts: set[str] = field(default_factory=set)

    def feed(self, line: LogLine) -> None:
        """Take note of what the line says about hosts."""
        text = line.body
        if "rank" in text and (match := _RANK_HOST.search(text)):
            self.by_rank.setdefault(int(match["rank"]), match["host"])
        if len(self.by_address) < _MAX_ADDRESSES and text.count(".") >= _DOTS_OF_AN_ADDRESS:
            self._note_addresses(text)
        if "error: " in text and (match := _TASK_HOST.search(text)):
            self.failed_task_hosts.add(match["host"])

    def _note_addresses(self, text: str) -> None:
        while match := _HOST_ADDRESS.search(text):
            self.by_address.setdefault(match["address"], match["host"])
            text = text[match.end() :]

    def host(self, node: str | None, rank: int | None) -> str | None:
        """Host of a name or address, else of a rank, else the only one whose task failed."""
        if node is not None:
            return self.by_address.get(node, node)
        if rank is not None and rank in self.by_rank:
            return self.by_rank[rank]
        return next(iter(self.failed_task_hosts)) if len(self.failed_task_hosts) == 1 else None
