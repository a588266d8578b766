"""How fast and how far logs are compressed, beside Drain3 on the same file and core.

    python -m tasks.diagnose.bench_compress [--size-mb N]

Each measurement is a process of its own on one core: ours reads and compresses the whole file; Drain3
(drain3-improved, as it comes) is given lines that are in memory already, a sample of the same file.
Rates are by processor time, so that what else the machine does counts for neither.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.errors import InputError, RunFailedError
from tasks.diagnose.bench_log import sample_lines, write_log
from tasks.diagnose.compress import compress
from tasks.diagnose.filter_rules import shipped_rules

ROUNDS = 5
_SAMPLE_LINES = 50_000
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def bench_compress(*, size_mb: int = 100, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure on a log of that size.

    Returns lines_per_s and drain3_lines_per_s (medians), speedup, ratio (lines for each kept one),
    peak_mb and peak_mb_tenth (of the process, with a tenth of the file: what memory does not grow
    with), lines, kept_lines, size_mb, causes (lines put in that can be one) and causes_kept.
    """
    if importlib.util.find_spec("drain3") is None:
        raise InputError("bench compress needs Drain3: pip install 'overland[bench]'")
    with tempfile.TemporaryDirectory(prefix="overland-bench-") as folder:
        path, tenth = Path(folder) / "job.log", Path(folder) / "tenth.log"
        causes = write_log(path, size_mb * 1_000_000)
        write_log(tenth, size_mb * 100_000)
        ours: list[dict[str, Any]] = []
        drain3: list[float] = []
        for _ in range(rounds):
            ours.append(_measure("ours", path))
            drain3.append(_measure("drain3", path)["lines_per_s"])
        peak_mb_tenth = _measure("ours", tenth)["peak_mb"]
        kept = set(_kept_numbers(path))
    lines_per_s = statistics.median(run["lines_per_s"] for run in ours)
    drain3_lines_per_s = statistics.median(drain3)
    return {
        "lines_per_s": lines_per_s,
        "drain3_lines_per_s": drain3_lines_per_s,
        "speedup": lines_per_s / drain3_lines_per_s,
        "ratio": ours[0]["lines"] / ours[0]["kept_lines"],
        "peak_mb": max(run["peak_mb"] for run in ours),
        "peak_mb_tenth": peak_mb_tenth,
        "lines": ours[0]["lines"],
        "kept_lines": ours[0]["kept_lines"],
        "size_mb": size_mb,
        "causes": len(causes),
        "causes_kept": sum(number in kept for number in causes),
    }


def _measure(who: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tasks.diagnose.bench_compress", "--measure", who, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailedError(f"the measurement of {who} failed: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _kept_numbers(path: Path) -> list[int]:
    return [line.number for line in compress([path]).kept]


def _measure_here(who: str, path: Path) -> dict[str, Any]:
    """Runs in a process of its own, on the first core that it may use."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if who == "drain3":
        return {"lines_per_s": _drain3_rate(sample_lines(path, _SAMPLE_LINES))}
    shipped_rules()
    begin = time.process_time()
    compressed = compress([path])
    seconds = time.process_time() - begin
    return {
        "lines_per_s": compressed.lines / seconds,
        "lines": compressed.lines,
        "kept_lines": compressed.kept_lines,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    """Of this program: `ru_maxrss` would count what its parent used when it started it."""
    match = _PEAK.search(Path("/proc/self/status").read_text())
    assert match is not None, "no VmHWM in /proc/self/status"
    return int(match[1]) / 1024


def _drain3_rate(lines: Sequence[str]) -> float:
    from drain3 import TemplateMiner
    from drain3.template_miner_config import TemplateMinerConfig

    miner = TemplateMiner(config=TemplateMinerConfig())
    begin = time.process_time()
    for line in lines:
        miner.add_log_message(line)
    return len(lines) / (time.process_time() - begin)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=int, default=100)
    parser.add_argument("--measure", nargs=2, metavar=("WHO", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        who, path = options.measure
        print(json.dumps(_measure_here(who, Path(path))))
    else:
        print(json.dumps(bench_compress(size_mb=options.size_mb), indent=2))


if __name__ == "__main__":
    main()
