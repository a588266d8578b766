"""Which crews are at an evaluation now, on all nodes, and which workers they have.

    claims/crews/NODE-PID-START.json     a crew, made when it begins and removed when it ends

A crew is present as long as it is alive, as :mod:`tasks.evaluate.claims` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from configs.records import Record
from configs.rundir import read_record, write_record
from tasks.evaluate.claims import Claims, Holder


class Crewed(Record):
    """One crew."""

    holder: dict[str, Any]
    workers: list[str]


class Roster:
    """All crews of an evaluation, as one of them sees them."""

    def __init__(self, folder: Path, claims: Claims) -> None:
        self._crews = folder / "crews"
        self._claims = claims

    @contextmanager
    def joined(self, holder: Holder, workers: Sequence[str]) -> Iterator[None]:
        """This crew is present while the block runs."""
        self._crews.mkdir(parents=True, exist_ok=True)
        mine = self._crews / f"{holder.name}.json"
        write_record(mine, Crewed(holder=asdict(holder), workers=list(workers)))
        try:
            yield
        finally:
            mine.unlink(missing_ok=True)  # a new plan removes the folder

    def present(self) -> dict[str, str]:
        """Worker -> its node, of all crews that are alive."""
        workers: dict[str, str] = {}
        for path in sorted(self._crews.glob("*.json")):
            crew = read_record(path, Crewed)
            if crew is None:
                continue
            holder = Holder(**crew.holder)
            if self._claims.is_alive(holder):
                workers |= dict.fromkeys(crew.workers, holder.node)
        return workers
