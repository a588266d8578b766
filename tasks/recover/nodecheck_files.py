"""A node check's folder, through which the flow and the nodes talk. It is on storage that all share.

job/                the launcher's files of the check's job
order_01.json       from the flow: who is tried with whom
round_01/NODE.json  from each node: how that went
round_01/meet_0003.json  where the processes of group 3 meet, from its first node
closed_01.json      from the flow: what had come back when the round ended; later answers count no more
DONE                from the flow: nodes may leave
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from configs.nodecheck import NodeAnswer, RoundOrder
from configs.records import Record
from configs.rundir import read_record, write_record


class ClosedRound(Record):
    """closed_NN.json."""

    groups: list[list[str]]
    answers: dict[str, NodeAnswer]


class Meeting(Record):
    """meet_NNNN.json."""

    address: str
    port: int


@dataclass(frozen=True)
class CheckFiles:
    """Names in one check's folder."""

    folder: Path

    @property
    def job_dir(self) -> Path:
        return self.folder / "job"

    @property
    def done(self) -> Path:
        return self.folder / "DONE"

    def order_path(self, number: int) -> Path:
        return self.folder / f"order_{number:02d}.json"

    def answer_path(self, number: int, node: str) -> Path:
        return self.folder / f"round_{number:02d}" / f"{node}.json"

    def meeting_path(self, number: int, group: int) -> Path:
        return self.folder / f"round_{number:02d}" / f"meet_{group:04d}.json"

    def closed_path(self, number: int) -> Path:
        return self.folder / f"closed_{number:02d}.json"

    def order(self, number: int) -> RoundOrder | None:
        return read_record(self.order_path(number), RoundOrder)

    def answer(self, number: int, node: str) -> NodeAnswer | None:
        return read_record(self.answer_path(number, node), NodeAnswer)

    def closed(self) -> list[ClosedRound]:
        """The rounds that have ended, in order."""
        found: list[ClosedRound] = []
        while (record := read_record(self.closed_path(len(found)), ClosedRound)) is not None:
            found.append(record)
        return found

    def give(self, order: RoundOrder) -> None:
        """Tell the nodes what to do next."""
        write_record(self.order_path(order.number), order)

    def reply(self, number: int, node: str, answer: NodeAnswer) -> None:
        """Tell the flow how it went."""
        write_record(self.answer_path(number, node), answer)

    def close(self, number: int, record: ClosedRound) -> None:
        """End a round."""
        write_record(self.closed_path(number), record)
