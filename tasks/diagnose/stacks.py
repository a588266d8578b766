"""Which rank the others wait for, by what all ranks were doing when the job hung.

Reads attempts/N/job/stacks/ (configs/stacks.py says what is there). In this order:

1. a rank that is stopped, has ended, or gave no answer while others did;
2. the rank whose record of its progress is behind: the least (step, phase);
3. among those that are equally far: the one that is not in a collective operation while others are;
4. by torch's own record, the one that has begun fewer collectives than the others of a group.
"""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from configs.events import StartEvent
from configs.progress import PHASES
from configs.records import AttemptRecord, Verdict
from configs.rundir import AttemptDir, read_record
from configs.stacks import (
    RANK_FILES,
    Frame,
    RankStack,
    collectives_file_name,
    rank_file_name,
    read_request,
)
from tasks.diagnose.verdicts import make_verdict

_QUOTED_FRAMES = 3
_QUOTED_RANKS = 3
_IN_COLLECTIVE = re.compile(r"/torch/distributed/|/megatron/core/pipeline_parallel/p2p")
_WAITS = re.compile(r"\.wait\(|\b(?:all_reduce|all_gather|reduce_scatter|broadcast|barrier)\w*\(")
_GONE = {
    "stopped": "is stopped: it got SIGSTOP, or a debugger holds it",
    "zombie": "has ended",
    "dead": "has ended",
    "": "has ended",
}


@dataclass(frozen=True)
class Behind:
    """Where the job hangs."""

    rank: int | None
    """None: several are equally far behind."""
    node: str | None
    evidence: list[str]


def verdict_on_hang(attempt: AttemptDir, record: AttemptRecord) -> Verdict | None:
    """Hang, with the rank that is behind; None when the attempt did not hang, or nobody looked."""
    behind = find_behind(attempt) if record.hung else None
    if behind is None:
        return None
    verdict = make_verdict(
        "Hang",
        method="stacks",
        confidence=0.9 if behind.rank is None else 0.95,
        rank=behind.rank,
        node=behind.node,
        evidence=[f"monitor: {record.reason}", *behind.evidence],
    )
    file = attempt.stacks_dir / rank_file_name(behind.rank or 0)
    if behind.rank is None or not file.is_file():
        return verdict
    place = str(file.relative_to(attempt.path))
    return verdict.model_copy(
        update={"root_cause_file": place, "root_cause_text": behind.evidence[-1]}
    )


def find_behind(attempt: AttemptDir) -> Behind | None:
    """Who is behind, with the reasons; None when nobody has looked at the ranks."""
    stacks = _read_stacks(attempt)
    if not stacks:
        return None
    missing = sorted(set(range(_world_size(attempt, stacks))) - set(stacks))
    gone = {rank: _GONE[s.state] for rank, s in stacks.items() if s.state in _GONE}
    gone |= dict.fromkeys(missing, "gave no answer: its node's agent does not see it any more")
    if gone:
        why = [f"rank {rank} {text}" for rank, text in sorted(gone.items())]
        return _behind(stacks, set(gone), why)
    least, why = _least_advanced(stacks)
    for narrow in (_outside_collectives, lambda s: _fewest_collectives(s, attempt)):
        if len(least) > 1:
            chosen, reason = narrow({rank: stacks[rank] for rank in least})
            least, why = chosen or least, [*why, *reason]
    return _behind(stacks, least, why)


def _behind(stacks: Mapping[int, RankStack], ranks: set[int], why: list[str]) -> Behind:
    nodes = {stacks[rank].node for rank in ranks if rank in stacks}
    everyone = len(ranks) == len(stacks) > 1
    quotes = [
        quote for rank in sorted(ranks)[:_QUOTED_RANKS] for quote in _quotes(stacks.get(rank))
    ]
    return Behind(
        rank=next(iter(ranks)) if len(ranks) == 1 else None,
        node=next(iter(nodes)) if len(nodes) == 1 and not everyone else None,
        evidence=[*why, *quotes],
    )


def _least_advanced(stacks: Mapping[int, RankStack]) -> tuple[set[int], list[str]]:
    """The ranks that are furthest behind by their own records; all, when one has none."""
    places = {rank: _place(stack) for rank, stack in stacks.items()}
    known = {rank: place for rank, place in places.items() if place is not None}
    if len(known) < len(stacks):
        return set(stacks), []
    least, furthest = min(known.values()), max(known.values())
    behind = {rank for rank, place in known.items() if place == least}
    if least == furthest:
        return behind, [f"all {len(stacks)} ranks are {_where(stacks[min(behind)])}"]
    ahead = next(rank for rank, place in known.items() if place == furthest)
    who = ", ".join(str(rank) for rank in sorted(behind))
    noun, verb = ("rank", "is") if len(behind) == 1 else ("ranks", "are")
    return behind, [
        f"{noun} {who} {verb} behind: {_where(stacks[min(behind)])}, "
        f"while rank {ahead} is {_where(stacks[ahead])}"
    ]


def _place(stack: RankStack) -> tuple[int, int] | None:
    if stack.step is None or stack.phase not in PHASES:
        return None
    return stack.step, PHASES.index(stack.phase)


def _where(stack: RankStack) -> str:
    since = f" for {stack.taken_at - stack.since:.0f} s" if stack.since else ""
    return f"in step {stack.step}, {stack.phase}{since}"


def _outside_collectives(stacks: Mapping[int, RankStack]) -> tuple[set[int], list[str]]:
    known = {rank: stack for rank, stack in stacks.items() if stack.frames}
    outside = {rank for rank, stack in known.items() if not _in_collective(stack.frames)}
    if not outside or len(outside) == len(known):
        return set(), []
    who = ", ".join(str(rank) for rank in sorted(outside))
    return outside, [f"rank {who} is in no collective operation, while the others are"]


def _in_collective(frames: list[Frame]) -> bool:
    if any(_IN_COLLECTIVE.search(frame.file) for frame in frames[:_QUOTED_FRAMES]):
        return True
    innermost = frames[0]
    return bool(_WAITS.search(linecache.getline(innermost.file, innermost.line)))


def _fewest_collectives(
    stacks: Mapping[int, RankStack], attempt: AttemptDir
) -> tuple[set[int], list[str]]:
    """By torch's record: in some group, one rank has begun fewer operations than all others."""
    begun: dict[str, dict[int, int]] = {}
    for rank in stacks:
        for group, count in _collectives(attempt, rank).items():
            begun.setdefault(group, {})[rank] = count
    for group, counts in begun.items():
        least = [rank for rank, count in counts.items() if count == min(counts.values())]
        if len(counts) > 1 and len(least) == 1:
            few, many = min(counts.values()), max(counts.values())
            reason = f"rank {least[0]} has begun {few} operations of group {group}, others {many}"
            return set(least), [reason]
    return set(), []


def _collectives(attempt: AttemptDir, rank: int) -> dict[str, int]:
    """How many collectives of each group the rank has begun."""
    try:
        value = json.loads((attempt.stacks_dir / collectives_file_name(rank)).read_bytes())
        entries: list[dict[str, Any]] = [e for dump in value.values() for e in dump["entries"]]
        counts: dict[str, int] = {}
        for entry in entries:
            group = " ".join(entry["process_group"])
            if not entry["is_p2p"]:
                counts[group] = max(counts.get(group, 0), int(entry["collective_seq_id"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return counts


def _quotes(stack: RankStack | None) -> list[str]:
    if stack is None:
        return []
    if not stack.frames:
        return [f"rank {stack.rank} (pid {stack.pid}): no stack: {stack.error}"]
    calls = " < ".join(
        f"{frame.function} ({_short(frame.file)}:{frame.line})"
        for frame in stack.frames[:_QUOTED_FRAMES]
    )
    return [f"rank {stack.rank} (pid {stack.pid}) in {calls}"]


def _short(file: str) -> str:
    """Without what is above the package."""
    return "/".join(file.rpartition("site-packages/")[2].split("/")[-4:])


def _read_stacks(attempt: AttemptDir) -> dict[int, RankStack]:
    """The answers to the last request."""
    request = read_request(attempt.job_dir)
    records = [read_record(path, RankStack) for path in attempt.stacks_dir.glob(RANK_FILES)]
    return {r.rank: r for r in records if r is not None and r.request == request}


def _world_size(attempt: AttemptDir, stacks: Mapping[int, RankStack]) -> int:
    starts = [event for event in attempt.events() if isinstance(event, StartEvent)]
    return starts[-1].world_size if starts else max(stacks) + 1
