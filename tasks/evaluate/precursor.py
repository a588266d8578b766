"""Brings a model to this node before its workers need it, and clears it away when they have ended.

    python -m tasks.evaluate.precursor MODEL_DIR IDENTITY [MIB_PER_S]

Says where the model lies as one line of JSON (:class:`tasks.evaluate.staging.Staged`) on standard
output, or why it cannot be had. Holds the copy until its standard input ends, which it does also when
whoever started it is killed; then the copy is removed, unless another evaluation on the node uses it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from configs.errors import EXIT_OK, EXIT_RUN_FAILED, EvaluationError
from tasks.evaluate.staging import staged


def hold(model_dir: Path, identity: str, mib_per_s: float | None) -> int:
    """Stage the model and hold it until standard input ends."""
    signal.signal(signal.SIGTERM, _leave)  # by way of the removal
    try:
        with staged(model_dir, identity, mib_per_s=mib_per_s) as copy:
            print(copy.model_dump_json(), flush=True)
            sys.stdin.read()
    except (EvaluationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_RUN_FAILED
    return EXIT_OK


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    _model_dir, _identity, *_rate = sys.argv[1:]
    sys.exit(hold(Path(_model_dir), _identity, float(_rate[0]) if _rate else None))
