"""Names of logs that are no UTF-8, and a disk that is full in C++'s words."""

from __future__ import annotations

import os
from pathlib import Path

from configs.diagnose_schema import DiagnoseConfig
from tasks.diagnose.answer import Diagnosis, answer
from tests.tasks.diagnose.one_log import verdict_on


def test_a_name_that_is_no_utf_8_is_escaped(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/bad\xff.log"
    Path(os.fsdecode(path)).write_text("Traceback (most recent call last):\nKeyError: 'labels'\n")
    settings = DiagnoseConfig(store=tmp_path / "store")
    (found,) = answer([os.fsdecode(path)], settings)
    assert isinstance(found, Diagnosis)
    assert found.failure_class == "KeyError"
    assert found.file == f"{tmp_path}/bad\\xff.log"
    assert found.can_be_confirmed


def test_a_write_that_fails_in_a_stream_of_cpp_is_the_storages(tmp_path: Path) -> None:
    verdict = verdict_on(
        tmp_path,
        [
            "saving checkpoint step 29",
            "Traceback (most recent call last):",
            '  File "/opt/lib/torch/serialization.py", line 1268, in _save',
            "    zip_file.write_record(name, storage, num_bytes)",
            "RuntimeError: basic_ios::clear: iostream error",
        ],
    )
    assert (verdict.failure_class, verdict.root_cause_line) == ("OSError", 5)
