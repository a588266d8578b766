"""Accuracy on labelled failure logs, which lie beside the repository on machines that have them.

The rules were written with these logs in view, so the figures are a floor to hold, no estimate of how
the rules do on logs that they have not seen.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.diagnose.diagnose import diagnose_files

LABELLED = Path(__file__).parents[4] / "shared" / "failure-logs"


@pytest.mark.skipif(
    not (LABELLED / "score.py").is_file(), reason=f"no labelled failure logs in {LABELLED}"
)
def test_accuracy_on_labelled_logs(tmp_path: Path) -> None:
    rows = ["file\tclass\tcategory\troot_cause_line\tfaulty_node\taction"]
    for log in sorted((LABELLED / "dev").glob("*.log")):
        v = diagnose_files([log])
        line, node = v.root_cause_line or 0, v.faulty_node or "-"
        rows.append(f"{log.name}\t{v.failure_class}\t{v.category}\t{line}\t{node}\t{v.action}")
    predictions = tmp_path / "predictions.tsv"
    predictions.write_text("\n".join(rows) + "\n")
    command = [sys.executable, str(LABELLED / "score.py"), str(LABELLED / "dev" / "INDEX.tsv")]
    command += [str(predictions), "--require", "accuracy=0.85", "macro_f1=0.8", "action=0.85"]
    command += ["root_line=0.85", "node=0.8", "false_restart=0.1"]
    scored = subprocess.run(command, capture_output=True, text=True, check=False)
    assert scored.returncode == 0, scored.stdout + scored.stderr
