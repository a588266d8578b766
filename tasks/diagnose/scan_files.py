"""A job's log files -> what they hold: small ones line by line, large ones by what can matter in them.

Where there is much to read, several processes share the files by size. A process reads runs of files that
follow each other, and the runs' scans are put together in the files' order, which tells what came first
where no times do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized

from configs.errors import InputError
from tasks.diagnose.blocks import Block
from tasks.diagnose.compress import Compressor
from tasks.diagnose.fast import FastScan, ScanLimits
from tasks.diagnose.logs import lines_of
from tasks.diagnose.merge import merge
from tasks.diagnose.rules import Rule, default_rules_and
from tasks.diagnose.scan import Scan
from tasks.diagnose.sources import Source, blocks_of, why_unreadable

_EVERY_LINE_BYTES = 4 << 20
"""Smaller logs are looked at line by line."""
_PACKED_SUFFIXES = (".gz", ".zst", ".xz", ".bz2")
_PACKED_RATIO = 20
"""Of logs, which repeat themselves."""
_ONE_PROCESS_BYTES = 128 << 20
_MAX_PROCESSES = 16
_RUNS_PER_PROCESS = 8
_TAKE_TIMEOUT_S = 60.0
_NO_RUN = sys.maxsize


def scan_files(
    sources: Sequence[Source],
    handled_errors: Sequence[str] = (),
    learned: Sequence[Rule] = (),
    *,
    compressor: Compressor | None = None,
    processes: int | None = None,
) -> Scan:
    """Scan a job's files, large or small, by several processes when there is much to read.

    One of several files that cannot be read is noted. `learned`: rules that stand behind the written ones. `compressor` is fed what is read, in
    the same pass; it needs this process alone. `processes`: in place of what their size asks for.
    """
    reader = _Reader(tuple(handled_errors), tuple(learned), compressor, len(sources) > 1)
    if processes is None:
        processes = 1 if reads_alone(sources) else len(os.sched_getaffinity(0))
    if compressor is not None or processes < 2:
        small = size_bytes(sources) < _EVERY_LINE_BYTES
        return reader.read_by_line(sources) if small else reader.read_fast(sources)
    return _scan_together(sources, reader, min(processes, _MAX_PROCESSES))


def reads_alone(sources: Sequence[Source]) -> bool:
    """Whether one process reads them: there is one file, or little in several."""
    return len(sources) < 2 or size_bytes(sources) < _ONE_PROCESS_BYTES


def size_bytes(sources: Sequence[Source]) -> int:
    """Of all files, unpacked by a guess; standard input may be anything."""
    return sum(map(_size_bytes, sources))


def _size_bytes(source: Source) -> int:
    if source.path is None:
        return _EVERY_LINE_BYTES
    packed = source.path.suffix.lower() in _PACKED_SUFFIXES
    return source.path.stat().st_size * (_PACKED_RATIO if packed else 1)


def runs_of(sizes: Sequence[int], processes: int) -> list[range]:
    """Runs of files that follow each other, none much larger than the others but where one file is."""
    most = -(-sum(sizes) // (processes * _RUNS_PER_PROCESS))
    runs: list[range] = []
    start = held = 0
    for at, size in enumerate(sizes):
        if at > start and held + size > most:
            runs.append(range(start, at))
            start, held = at, 0
        held += size
    return [*runs, range(start, len(sizes))]


def _scan_together(sources: Sequence[Source], reader: _Reader, processes: int) -> Scan:
    """Each process takes the largest run that is left; this one has begun before the others are up."""
    sizes = [_size_bytes(source) for source in sources]
    runs = runs_of(sizes, processes)
    by_size = sorted(runs, key=lambda run: -sum(sizes[at] for at in run))
    work = [(run.start, [sources[at] for at in run]) for run in by_size]
    context = get_context("spawn")
    taken = context.Value("i", 0)
    helpers = max(1, min(processes, len(runs)) - 1)
    with ProcessPoolExecutor(helpers, context, _begin, (taken,)) as pool:
        others = [pool.submit(_read_taken, reader, work) for _ in range(helpers)]
        found = _take_and_read(reader, work, taken)
        with suppress(BrokenProcessPool):  # one was killed: for want of memory, mostly
            for other in others:
                found += other.result()
    read = {first for first, _ in found}
    found += [(first, reader.read_fast(run)) for first, run in work if first not in read]
    return merge([scan for _, scan in sorted(found, key=lambda pair: pair[0])])


_Work = Sequence[tuple[int, Sequence[Source]]]
"""The runs, each with the number of its first file."""
_taken: Synchronized[int]
"""In a helping process: how many of the runs are taken. It can be handed over only when that begins."""


def _begin(taken: Synchronized[int]) -> None:
    global _taken
    _taken = taken


def _read_taken(reader: _Reader, work: _Work) -> list[tuple[int, Scan]]:
    return _take_and_read(reader, work, _taken)


def _take(taken: Synchronized[int]) -> int:
    lock = taken.get_lock()
    if not lock.acquire(timeout=_TAKE_TIMEOUT_S):
        return _NO_RUN  # a process was killed as it held the lock
    try:
        taken.value += 1
        return taken.value - 1
    finally:
        lock.release()


def _take_and_read(
    reader: _Reader, work: _Work, taken: Synchronized[int]
) -> list[tuple[int, Scan]]:
    """The scans of those runs that no other process takes."""
    found: list[tuple[int, Scan]] = []
    while True:
        at = _take(taken)
        if at >= len(work):
            return found
        first, run = work[at]
        found.append((first, reader.read_fast(run)))


@dataclass(frozen=True)
class _Reader:
    """Reads files into scans with the same rules."""

    handled_errors: tuple[str, ...]
    learned: tuple[Rule, ...]
    compressor: Compressor | None = None
    goes_on: bool = False
    """Past a file that cannot be read: it is noted, and what it holds before is taken."""

    def read_fast(self, sources: Sequence[Source]) -> Scan:
        """One scan of the files, looked at by what can matter."""
        scan = self._new_scan()
        fast = FastScan(scan)
        for source in sources:
            fast.read(source, self._blocks(source, scan, fast.limits))
        return scan

    def read_by_line(self, sources: Sequence[Source]) -> Scan:
        """One scan of the files, each line of them looked at."""
        scan = self._new_scan()
        for source in sources:
            scan.read(lines_of(self._blocks(source, scan, ScanLimits()), source))
        return scan

    def _new_scan(self) -> Scan:
        rules = default_rules_and(list(self.learned))
        return Scan(rules, handled_errors=list(self.handled_errors))

    def _blocks(self, source: Source, scan: Scan, limits: ScanLimits) -> Iterator[Block]:
        """The source's blocks; what is counted of them is noted on the way."""
        last_line = 0
        if self.compressor is not None:
            self.compressor.begin(source)
        blocks = blocks_of(
            source, limits.block_bytes, on_cut_off=lambda: scan.cut_off.append(source.name)
        )
        try:
            for block in blocks:
                last_line = block.numbers[-1]
                if self.compressor is not None:
                    self.compressor.feed(block)
                yield block
        except (InputError, OSError) as error:
            if not self.goes_on:
                raise
            scan.unreadable[source.name] = why_unreadable(source.name, error)
        scan.lines_read += last_line
        if self.compressor is not None:
            self.compressor.end()
