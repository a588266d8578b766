"""Large logs: only the lines that can matter are looked at, and those around them.

What a line can mean is decided once for each *shape* (the line without its digits), and the shapes of a
block are got in one pass in C. Reports of steps are counted. What an error was survived by (see
survival.py) makes it of no account: before a file's last steps, only lines about hosts are looked at. From
there on, all that speaks of a failure or an end is fed to the scan with the lines that follow it, as are
the first and last lines of each file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat

from tasks.diagnose.accounting import may_be_row, says_step_aborted
from tasks.diagnose.block_pieces import Pieces
from tasks.diagnose.blocks import Block
from tasks.diagnose.cause_words import is_strong
from tasks.diagnose.collectives import names_missing
from tasks.diagnose.exceptions import may_be_traceback
from tasks.diagnose.findings import LINK
from tasks.diagnose.host_tables import names_beside_rank
from tasks.diagnose.logs import LogLine, make_line, writer_of
from tasks.diagnose.progress import is_ending
from tasks.diagnose.reports import is_step
from tasks.diagnose.restarts import may_begin
from tasks.diagnose.scan import Scan
from tasks.diagnose.sources import Source
from tasks.diagnose.templates import Cache, shapes
from tasks.diagnose.topology import may_tell_hosts
from tasks.diagnose.watchers import may_tell_watchers

_CACHE_BYTES = 32 << 20
_DULL, _STEP, _ALONE, _BEGINS, _PLACE, _ONCE, _GREETING, _NCCL = range(8)
"""Of a shape: nothing, a step's report, a line of its own, one that others follow, one about hosts; one
that speaks of a failure in words that no rule knows: its first line is looked at; one that may tell where
the rank is that writes it: the first of each shape in a file is; NCCL's own of that: they are about hosts
where many write a file, and a greeting where one does."""
_NEW = 255
_MATTERS = re.compile(rb"[\x02-\x05]")
_MATTERS_ALWAYS = re.compile(rb"\x04")
_GREETINGS = re.compile(rb"\x06")
_NCCL_OF_MANY = bytes(_PLACE if kind == _NCCL else kind for kind in range(256))
_NCCL_OF_ONE = bytes(_GREETING if kind == _NCCL else kind for kind in range(256))
_NO_GREETINGS = bytes(_DULL if kind == _GREETING else kind for kind in range(256))
_BEFORE = 2
_REPORTS_BETWEEN = 8
"""Reports without a new rank, and twice the ranks found so far, that end the search for further ranks."""
_AFTER = {_ALONE: 1, _BEGINS: 6}
"""Lines that are looked at behind a line: in a traceback each frame asks for more."""


@dataclass(frozen=True)
class ScanLimits:
    """How much of large logs is looked at, and what is held in memory for that."""

    block_bytes: int = 1 << 20
    waiting_blocks: int = 32
    """Of a file, until it is known what in them was survived."""
    head_lines: int = 16
    """Of each file, whatever they are; and its last ones."""
    tail_lines: int = 1000
    """Where many ranks write: the last report of each is in it."""
    tail_lines_of_rank: int = 32
    steps: int = 600
    """Reports of steps at the end of a file that all errors before them were survived by; of many ranks'."""
    steps_of_rank: int = 4
    greetings: int = 1024
    """Of a file."""
    greetings_in_all: int = 16_384


@dataclass
class FastScan:
    """Feeds a scan from the blocks of large files."""

    scan: Scan
    limits: ScanLimits = ScanLimits()
    _kinds: Cache = field(default_factory=lambda: Cache(_CACHE_BYTES))
    """What shapes mean."""
    _met: set[bytes] = field(default_factory=set)
    """Shapes of greetings in the file."""
    _left: int = 0
    """Greetings that are still looked at in the file; and in all."""
    _left_in_all: int = field(init=False)

    def __post_init__(self) -> None:
        self._left_in_all = self.limits.greetings_in_all

    def read(self, source: Source, blocks: Iterable[Block]) -> None:
        """Read a source's blocks to their end."""
        limits, many = self.limits, source.rank is None
        held = limits.tail_lines if many else limits.tail_lines_of_rank
        steps = limits.steps if many else limits.steps_of_rank
        feed = _Feed(self.scan, source, left=limits.head_lines)
        self._met.clear()
        self._left = min(limits.greetings, self._left_in_all)
        waiting: deque[tuple[Pieces, bytes]] = deque()
        for block in blocks:
            waiting.append((Pieces(block), self._kinds_of(block, many)))
            outlived = _holds([kinds for _, kinds in waiting][1:], held, steps)
            while outlived or len(waiting) > limits.waiting_blocks:
                pieces, kinds = waiting.popleft()
                feed.lines(pieces, kinds, 0, len(kinds), survived=outlived)
                outlived = _holds([kinds for _, kinds in waiting][1:], held, steps)
        last = _last_steps([kinds for _, kinds in waiting], steps)
        left = sum(len(kinds) for _, kinds in waiting)
        feed.notes_ranks = many
        for (pieces, kinds), survived in zip(waiting, last, strict=True):
            cut = min(len(kinds), max(survived, left - held))
            feed.lines(pieces, kinds, 0, survived, survived=True)
            feed.lines(pieces, kinds, survived, cut, survived=False)
            feed.left, feed.at_end = len(kinds) - cut, True
            feed.lines(pieces, kinds, cut, len(kinds), survived=False)
            left -= len(kinds)

    def _kinds_of(self, block: Block, many: bool) -> bytes:
        keys = shapes(block.data)
        kinds = bytearray(map(self._kinds.get, keys, repeat(_NEW)))
        if _NEW in kinds:
            pieces = Pieces(block)
            for at in [at for at, kind in enumerate(kinds) if kind == _NEW]:
                kind = self._kinds.get(keys[at], _NEW)
                if kind == _NEW:
                    kind = self._kind_of(pieces[at])
                    self._kinds.remember(keys[at], _DULL if kind == _ONCE else kind)
                    kind = _ALONE if kind == _ONCE else kind
                kinds[at] = kind
        found = bytes(kinds)
        if _NCCL in found:
            found = found.translate(_NCCL_OF_MANY if many else _NCCL_OF_ONE)
        return self._with_first_greetings(keys, found) if _GREETING in found else found

    def _with_first_greetings(self, keys: list[bytes], kinds: bytes) -> bytes:
        """Of greetings those that are looked at: of shapes that are new in the file, and not too many."""
        if self._left <= 0:
            return kinds.translate(_NO_GREETINGS)
        all_at = [found.start() for found in _GREETINGS.finditer(kinds)]
        new_at = [at for at in all_at if keys[at] not in self._met][: self._left]
        self._left -= len(new_at)
        self._left_in_all -= len(new_at)
        self._met.update(keys[at] for at in new_at)
        found = bytearray(kinds.translate(_NO_GREETINGS))
        for at in new_at:
            found[at] = _PLACE
        return bytes(found)

    def _kind_of(self, piece: bytes) -> int:
        line = make_line(piece, 0, Source(None, ""))
        if line is None:
            return _DULL
        body = line.body
        if may_be_traceback(body) or names_missing(body):
            return _BEGINS
        finding = self.scan.rules.match(line, 0)
        matched = finding is not None
        if is_step(body) and not matched:
            return _STEP
        # Of links that went down it matters even when training went on for a while.
        if finding is not None and finding.method == LINK:
            return _PLACE
        if may_tell_hosts(body):
            return _NCCL if "NCCL INFO" in body and not matched else _PLACE
        if may_tell_watchers(line):
            return _BEGINS if matched else _PLACE
        if matched:
            return _BEGINS
        if is_ending(body) or may_begin(body) or may_be_row(body) or says_step_aborted(body):
            return _ALONE
        if is_strong(body):
            return _ONCE
        return _GREETING if names_beside_rank(line) else _DULL


def _holds(blocks: list[bytes], lines: int, steps: int) -> bool:
    """Whether the blocks hold so many lines and reports of steps."""
    return (
        sum(len(kinds) for kinds in blocks) >= lines
        and sum(kinds.count(_STEP) for kinds in blocks) >= steps
    )


def _last_steps(blocks: list[bytes], steps: int) -> list[int]:
    """Where in each block the last `steps` reports begin; its end in blocks before them."""
    found = []
    for kinds in reversed(blocks):
        count = kinds.count(_STEP)
        at = len(kinds)
        if steps <= 0:
            found.append(at)
            continue
        for _ in range(min(count, steps)):
            at = kinds.rindex(_STEP, 0, at)
        steps -= count
        found.append(at if steps <= 0 else 0)
    return found[::-1]


@dataclass
class _Feed:
    """Goes through one file's lines, and feeds those that matter."""

    scan: Scan
    source: Source
    left: int
    """Lines that are still looked at, whatever they are."""
    at_end: bool = False
    """Whether these are the last lines, which are looked at for more than where ranks are."""
    notes_ranks: bool = False
    """Whether the last reports of ranks are looked for: at the end of a file that many write."""

    def lines(self, pieces: Pieces, kinds: bytes, start: int, end: int, *, survived: bool) -> None:
        """The lines from `start` to `end` of a block; errors in them were survived, or may not have been."""
        at, matters = start, _MATTERS_ALWAYS if survived else _MATTERS
        while at < end:
            if self.left <= 0:
                match = matters.search(kinds, at, end)
                found = match.start() if match else end
                before = max(at, found - _BEFORE) if match else end
                self._skip(pieces, kinds, at, before)
                at, self.left = before, found - before + 1
                continue
            self._feed(pieces, kinds, at, survived=survived)
            at += 1

    def _feed(self, pieces: Pieces, kinds: bytes, at: int, *, survived: bool) -> None:
        line = make_line(pieces[at], pieces.numbers[at], self.source)
        if line is not None:
            ordinary = kinds[at] in (_DULL, _STEP)
            # A rank that alone writes its file has said at its start where it is.
            placed = self.at_end and self.source.rank is not None
            self.scan.feed(line, of_hosts=not (ordinary and placed), is_ordinary=ordinary)
        self.left = max(self.left - 1, 0 if survived else _AFTER.get(kinds[at], 0))

    def _skip(self, pieces: Pieces, kinds: bytes, start: int, end: int) -> None:
        """Count the reports of steps that are not looked at; losses may be wanted later."""
        if self.source.rank is not None:
            self.scan.skip_lines(end - start, self.source.name, self.source.rank)
        count = kinds.count(_STEP, start, end)
        if count == 0:
            return
        last_at = kinds.rindex(_STEP, start, end)
        last = self._line(pieces, last_at)
        if last is None:
            return
        if self.scan.progress.wants_losses(last):
            for at in range(start, last_at):
                if kinds[at] == _STEP:
                    self.scan.progress.keep_raw(pieces[at], pieces.numbers[at], self.source)
        if self.notes_ranks:
            for line in self._last_reports(pieces, kinds, start, last_at):
                self.scan.note_report(line)
        self.scan.skip_steps(count, last)

    def _last_reports(self, pieces: Pieces, kinds: bytes, start: int, end: int) -> list[LogLine]:
        """The last reports before `end` in which every rank that is found has one, the first first."""
        found: list[LogLine] = []
        ranks: set[int | None] = set()
        without_new, at = 0, end
        while without_new <= _REPORTS_BETWEEN + 2 * len(ranks):
            at = kinds.rfind(_STEP, start, at)
            if at < 0:
                break
            line = self._line(pieces, at)
            if line is None:
                continue
            rank = writer_of(line)
            without_new = without_new + 1 if rank is None or rank in ranks else 0
            ranks.add(rank)
            found.append(line)
        return found[::-1]

    def _line(self, pieces: Pieces, at: int) -> LogLine | None:
        return make_line(pieces[at], pieces.numbers[at], self.source)
