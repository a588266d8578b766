"""Labelled cases that are wrong are named, and figures of none are no number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.errors import InputError
from flows.show.bench import print_diagnosis_bench
from tasks.diagnose.bench_diagnose import bench_diagnose
from tasks.diagnose.scores import read_cases

HEAD = "file\tclass\tcategory\troot_cause_line\tfaulty_rank\tfaulty_node\taction\tfidelity\tnote\n"
ROW = "a.log\tKeyError\tscript\t{line}\t-\t-\tfix_by_user\tcaused\t\n"


def write_case(folder: Path, rows: str) -> None:
    (folder / "INDEX.tsv").write_text(rows)
    (folder / "a.log").write_text("KeyError: 'lr'\n")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (HEAD, "has no rows"),
        (HEAD + ROW.format(line="x"), "malformed"),
        ("file\tclass\na.log\tKeyError\n", "malformed"),
        (HEAD + "a.log\n", "malformed"),
        (HEAD + ROW.format(line=1).replace("a.log", "b.log"), "b.log, which is not there"),
    ],
)
def test_cases_that_are_wrong_are_named(tmp_path: Path, rows: str, said: str) -> None:
    write_case(tmp_path, rows)
    with pytest.raises(InputError, match=said):
        read_cases(tmp_path)


def test_a_share_of_no_cases_is_null_and_the_table_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(tmp_path, HEAD + ROW.format(line=1))
    figures = bench_diagnose(tmp_path)
    print_diagnosis_bench(figures, json=True)
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["results"][0]
    assert (result["node"], result["accuracy"]) == (None, 1.0)
    monkeypatch.setenv("COLUMNS", "80")
    print_diagnosis_bench(figures, json=False)
    printed = capsys.readouterr().out
    assert "last error line" in printed and "action" in printed and "harm" in printed
    assert "…" not in printed
