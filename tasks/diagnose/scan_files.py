"""A job's log files -> what they hold: small ones line by line, large ones by what can matter in them.

Where there is much to read, several processes share the files by size. A process reads runs of files that
follow each other, and the runs' scans are put together in the files' order, which tells what came first
where no times do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from configs.errors import InputError
from tasks.diagnose.blocks import Block
from tasks.diagnose.compress import Compressor
from tasks.diagnose.fast import FastScan, ScanLimits, new_kinds
from tasks.diagnose.logs import lines_of
from tasks.diagnose.merge import merge
from tasks.diagnose.rules import Rule, RuleSet, default_rules_and
from tasks.diagnose.scan import Scan
from tasks.diagnose.sources import Source, blocks_of, why_unreadable

_EVERY_LINE_BYTES = 4 << 20
"""Smaller logs are looked at line by line."""
_PACKED_SUFFIXES = (".gz", ".zst", ".xz", ".bz2")
_PACKED_RATIO = 20
"""Of logs, which repeat themselves."""
_ONE_PROCESS_BYTES = 128 << 20
_MAX_PROCESSES = 16
_RUNS_PER_PROCESS = 4


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
        return reader.read_all(sources, by_line=size_bytes(sources) < _EVERY_LINE_BYTES)
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


def share_out(sizes: Sequence[int], processes: int) -> list[list[range]]:
    """Which runs of files each process reads: the largest first, each to who has least so far.

    A large file is a run of its own. The share with the first file comes first.
    """
    most = -(-sum(sizes) // (processes * _RUNS_PER_PROCESS))
    runs: list[range] = []
    start = held = 0
    for at, size in enumerate(sizes):
        if at > start and held + size > most:
            runs.append(range(start, at))
            start, held = at, 0
        held += size
    runs.append(range(start, len(sizes)))
    weights = {run: sum(sizes[at] for at in run) for run in runs}
    shares: list[list[range]] = [[] for _ in range(min(processes, len(runs)))]
    loads = [0] * len(shares)
    for run in sorted(runs, key=lambda run: -weights[run]):
        least = loads.index(min(loads))
        shares[least].append(run)
        loads[least] += weights[run]
    in_order = [sorted(share, key=lambda run: run.start) for share in shares if share]
    return sorted(in_order, key=lambda share: share[0].start)


def _scan_together(sources: Sequence[Source], reader: _Reader, processes: int) -> Scan:
    """This process takes the share with the first file: what it has read, the rest is added to."""
    shares = share_out([_size_bytes(source) for source in sources], processes)
    tasks = [[[sources[at] for at in run] for run in share] for share in shares]
    with ProcessPoolExecutor(max(1, len(tasks) - 1), mp_context=get_context("spawn")) as pool:
        others = pool.map(reader.read_runs, tasks[1:])
        found = [reader.read_runs(tasks[0]), *others]
    order = [run.start for share in shares for run in share]
    scans = [scan for of_process in found for scan in of_process]
    return merge([scan for _, scan in sorted(zip(order, scans, strict=True), key=lambda p: p[0])])


@dataclass(frozen=True)
class _Reader:
    """Reads files into scans with the same rules."""

    handled_errors: tuple[str, ...]
    learned: tuple[Rule, ...]
    compressor: Compressor | None = None
    goes_on: bool = False
    """Past a file that cannot be read: it is noted, and what it holds before is taken."""

    def read_runs(self, runs: Sequence[Sequence[Source]]) -> list[Scan]:
        """A scan for each run of files, looked at by what can matter."""
        rules = default_rules_and(list(self.learned))
        scans = [self._new_scan(rules) for _ in runs]
        kinds = new_kinds()
        for run, scan in zip(runs, scans, strict=True):
            fast = FastScan(scan, kinds=kinds)
            for source in run:
                fast.read(source, self._blocks(source, scan, fast.limits))
        return scans

    def read_all(self, sources: Sequence[Source], *, by_line: bool) -> Scan:
        """One scan of all files."""
        if not by_line:
            return self.read_runs([sources])[0]
        scan = self._new_scan(default_rules_and(list(self.learned)))
        for source in sources:
            scan.read(lines_of(self._blocks(source, scan, ScanLimits()), source))
        return scan

    def _new_scan(self, rules: RuleSet) -> Scan:
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
