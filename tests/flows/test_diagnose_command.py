"""`overland diagnose` as a person and a script use it: real processes, files, directories, pipes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from configs.errors import InputError
from tasks.diagnose.answer import Diagnosis, answer
from tasks.diagnose.inputs import find_inputs

KEYS = [
    "file",
    "class",
    "category",
    "root_cause_line",
    "root_cause_text",
    "faulty_rank",
    "faulty_node",
    "action",
    "confidence",
    "method",
    "evidence",
    "mitigation",
    "lines",
    "kept_lines",
]
LOG = (
    "step 1 loss: 2.0\nTraceback (most recent call last):\n  File 'a.py', line 3, in f\n"
    "KeyError: 'lr'\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERLAND_CASES", str(tmp_path / "store"))
    logs = tmp_path / "logs"
    logs.mkdir()
    return logs


def _run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", "diagnose", *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, env=os.environ
    )


def _found(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_one_json_object_for_each_input_with_exactly_the_promised_keys(folder: Path) -> None:
    (folder / "a.log").write_text(LOG)
    (folder / "b.log").write_text("job 3 finished, exit code 0\n")
    ended = _run("--json", str(folder / "a.log"), str(folder / "b.log"))
    assert ended.returncode == 0, ended.stderr
    first, second = _found(ended)
    assert list(first) == KEYS
    assert (first["class"], first["root_cause_line"], first["lines"]) == ("KeyError", 4, 4)
    assert 1 <= first["kept_lines"] <= 4
    assert (second["class"], second["root_cause_line"]) == ("NoFailure", None)


def test_a_directory_of_ranks_is_one_job_and_one_of_unrelated_logs_is_many(folder: Path) -> None:
    for rank in range(3):
        (folder / f"rank_{rank}.log").write_text(LOG if rank == 1 else "step 1 loss: 2.0\n")
    (job,) = _found(_run("--json", str(folder)))
    assert (job["class"], job["faulty_rank"]) == ("KeyError", 1)
    assert job["file"] == str(folder / "rank_1.log")
    for rank in range(3):
        (folder / f"rank_{rank}.log").rename(folder / f"log-{rank}.log")
    assert len(_found(_run("--json", str(folder)))) == 3


def test_standard_input_is_read_and_the_report_quotes_the_line(folder: Path) -> None:
    ended = _run("-", text=LOG)
    assert ended.returncode == 0, ended.stderr
    assert "KeyError: 'lr'" in ended.stdout and "line 4" in ended.stdout
    assert "fix_by_user" in ended.stdout


def test_what_cannot_be_read_is_named_and_the_rest_is_answered(folder: Path) -> None:
    (folder / "a.log").write_text(LOG)
    empty = folder / "empty"
    empty.mkdir()
    packed = bytearray(gzip.compress(LOG.encode()))
    packed[len(packed) // 2 :] = b"\xff" * 64
    (folder / "damaged.gz").write_bytes(packed)
    (folder / "core").write_bytes(Path(sys.executable).read_bytes()[:9000])
    names = ("damaged.gz", "gone.log", "empty", "core")
    wrong = [*(str(folder / name) for name in names), "~no-such-user/log"]
    ended = _run("--json", *wrong, str(folder / "a.log"))
    assert ended.returncode == 2
    assert [found["class"] for found in _found(ended)] == ["KeyError"]
    assert "damaged.gz: the compressed log is damaged" in ended.stderr
    assert "gone.log does not exist" in ended.stderr and "empty holds no log" in ended.stderr
    assert "~no-such-user/log does not exist" in ended.stderr
    assert f"error: {folder}/core is a binary file, no log: give the text" in ended.stderr
    assert _run().returncode == 2


def test_a_diagnosis_can_be_corrected_by_its_id(folder: Path, tmp_path: Path) -> None:
    log = folder / "a.log"
    log.write_text(LOG)
    report = _run(str(log)).stdout
    case_id = report.split("id ")[-1].split()[0]
    assert _run("--confirm", case_id, "ArgumentError").returncode == 0
    (line,) = (tmp_path / "store" / "confirmed.jsonl").read_text().splitlines()
    assert json.loads(line)["class"] == "ArgumentError"
    wrong = _run("--confirm", case_id, "Keyerorr")
    assert wrong.returncode == 2 and "do you mean KeyError" in wrong.stderr
    assert _run("--confirm", "unheard-of", "KeyError").returncode == 2
    (again,) = _found(_run("--json", str(log)))
    assert (again["class"], again["method"], again["confidence"]) == (
        "ArgumentError",
        "confirmed",
        1,
    )
    confirmed = _run("--confirm", os.path.relpath(log), "nofailure", "--json")
    assert _found(confirmed) == [
        {"id": case_id, "class": "NoFailure", "diagnosed_as": "ArgumentError"}
    ]
    (healthy,) = _found(_run("--json", str(log)))
    assert (healthy["class"], healthy["root_cause_line"]) == ("NoFailure", None)


@pytest.mark.parametrize("diagnosis", [None, 3, {}, {"file": "a"}, {"file": 3, "class": "Hang"}])
def test_what_was_edited_by_hand_is_no_diagnosis_to_confirm(
    folder: Path, tmp_path: Path, diagnosis: object
) -> None:
    (folder / "a.log").write_text(LOG)
    store = tmp_path / "store"
    store.mkdir()
    edited = json.dumps({"id": "ab12", "diagnosis": diagnosis})
    (store / "given.jsonl").write_text(f"garbage\n{edited}\n")
    assert _run("--confirm", "ab12", "Hang").returncode == 2
    assert _run(str(folder)).returncode == 0
    assert _run("--confirm", str(folder / "a.log"), "Hang").returncode == 0


def test_a_config_names_the_store_and_a_model(folder: Path, tmp_path: Path) -> None:
    (folder / "a.log").write_text("[sim] FATAL mesh partition 3 has no cells\n")
    config = tmp_path / "run.yaml"
    endpoint = "http://127.0.0.1:9/v1"  # nobody listens there
    config.write_text(
        f"diagnose: {{store: {tmp_path}/named, endpoint: '{endpoint}', model: m, retries: 0}}\n"
    )
    (found,) = _found(_run("--json", "--config", str(config), str(folder / "a.log")))
    assert found["evidence"][-1].startswith("language model: ")
    assert _run("--confirm", str(folder / "a.log"), "Hang").returncode == 2, "in another store"
    confirmed = _run("--confirm", str(folder / "a.log"), "Hang", "--config", str(config))
    assert confirmed.returncode == 0, confirmed.stderr
    assert (tmp_path / "named" / "confirmed.jsonl").is_file()
    config.write_text(f"diagnose: {{store: {folder}/a.log}}\n")
    refused = _run("--config", str(config), str(folder / "a.log"))
    assert refused.returncode == 2 and "diagnose.store" in refused.stderr


@pytest.mark.parametrize("content", ["junk: [", "rules: 3", None])
def test_broken_learned_rules_cost_only_themselves(
    folder: Path, tmp_path: Path, content: str | None
) -> None:
    rules = tmp_path / "store" / "learned_rules.yaml"
    rules.parent.mkdir()
    rules.mkdir() if content is None else rules.write_text(content)
    (folder / "a.log").write_text(LOG)
    (found,) = answer([str(folder / "a.log")])
    assert isinstance(found, Diagnosis)
    assert found.failure_class == "KeyError"
    assert "learned rules are left out" in found.evidence[-1]


def test_what_a_terminal_obeys_is_not_printed(folder: Path) -> None:
    log = folder / "\x1b[31mred\nx.log"
    log.write_text(f"{LOG.strip()} \x1b[2J\x9b31m\u202egnirts\u200b\n")
    shown = _run(str(folder)).stdout
    assert "KeyError" in shown and "red x.log" in " ".join(shown.split())
    assert not set(shown) & set("\x1b\x9b\u202e\u200b")
    refused = _run("--confirm", "id\x1b[31m", "KeyError").stderr
    assert "no diagnosis" in refused and "\x1b" not in refused


def test_streams_that_are_closed_or_full_are_named(folder: Path) -> None:
    (folder / "a.log").write_text(LOG)
    command = [sys.executable, "-m", "flows.cli", "diagnose"]
    for shell, said in (
        ('exec "$@" - <&-', "standard input is closed"),
        (f'exec "$@" {folder}/a.log >&-', "standard output is closed"),
        (f'exec "$@" {folder}/a.log >/dev/full', "No space left on device"),
    ):
        ended = subprocess.run(
            ["sh", "-c", shell, "sh", *command], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 2
        assert said in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("name", "said"), [("", "empty path"), ("loop", "a link"), ("/dev/zero", "a device")]
)
def test_what_is_no_log_is_refused(folder: Path, name: str, said: str) -> None:
    (folder / "loop").symlink_to(folder / "loop")
    (found,) = answer([str(folder / name) if name == "loop" else name])
    assert isinstance(found, InputError) and said in str(found)


def test_a_store_that_cannot_be_written_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OVERLAND_CASES", str(tmp_path / "file" / "store"))
    (folder / "a.log").write_text(LOG)
    (found,) = answer([str(folder / "a.log")])
    assert isinstance(found, Diagnosis) and not found.can_be_confirmed


def test_a_named_pipe_is_read_once_and_answered_whole(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with ThreadPoolExecutor(1) as writer:
        writer.submit((folder / "pipe").write_text, LOG)
        (found,) = answer([str(folder / "pipe")])
    assert isinstance(found, Diagnosis)
    assert (found.failure_class, found.lines) == ("KeyError", 4)


def test_the_two_streams_of_a_job_are_one_input(folder: Path) -> None:
    for name in ("slurm-12.out", "slurm-12.err", "slurm-13.out", "other.log"):
        (folder / name).write_text("")
    found = {log.name: len(log.files) for log in find_inputs([str(folder)])}
    assert found == {
        f"{folder}/slurm-12.err": 2,
        f"{folder}/slurm-13.out": 1,
        f"{folder}/other.log": 1,
    }


BESIDE = ("slurm-77.out", "root.log", "nvidia-smi.log", "debug-internal.log", "README", "env.txt")


@pytest.mark.parametrize("name", ["rank_{}.log", "node{}.err", "node{}/train.txt", "{}/stderr.log"])
def test_what_lies_beside_the_logs_of_ranks_is_of_their_job(folder: Path, name: str) -> None:
    for number in range(2):
        part = folder / name.format(number)
        part.parent.mkdir(exist_ok=True)
        part.write_text("step 1 loss: 2.0\n")
    for other in BESIDE:
        (folder / other).write_text("x\n")
    (job,) = find_inputs([str(folder)])
    assert (len(job.files), job.folder) == (2 + len(BESIDE), None)


@pytest.mark.parametrize(
    "names",
    [
        ["rank_0.log", *BESIDE],
        ["rank_0.log", "rank_1.log", "slurm-7.out", "slurm-8.out"],
        ["gpu1.log", "gpu2.log", *(f"log-{number}.txt" for number in range(9))],
        ["bert_rank_0.log", "llama_rank_0.log", "eval.log"],
    ],
)
def test_unrelated_logs_stay_many_which_is_said(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).write_text("step 1 loss: 2.0\n")
    found = find_inputs([str(folder)])
    assert len(found) == len(names)
    assert found[0].folder is not None and found[0].folder.logs == len(names)


def test_a_folder_of_unrelated_logs_is_said_to_be_one(folder: Path) -> None:
    for name in ("a.log", "b.log"):
        (folder / name).write_text(LOG)
    shown = _run(str(folder)).stdout
    assert shown.startswith(f"{folder} is read as 2 unrelated logs")
    assert shown.count("is read as") == 1


def test_a_job_is_diagnosed_by_the_files_that_can_be_read(folder: Path) -> None:
    for rank in range(3):
        (folder / f"rank_{rank}.log").write_text(LOG if rank == 1 else "step 1 loss: 2.0\n")
    packed = bytearray(gzip.compress(LOG.encode()))
    packed[len(packed) // 2 :] = b"\xff" * 64
    (folder / "rank_3.log").write_bytes(packed)
    ended = _run("--json", str(folder))
    (job,) = _found(ended)
    assert (ended.returncode, job["class"], job["faulty_rank"]) == (2, "KeyError", 1)
    assert "rank_3.log" in job["evidence"][-1]
    assert ended.stderr.startswith(f"error: {folder}/rank_3.log: the compressed log is damaged")


def test_a_core_dump_beside_logs_is_no_log(folder: Path) -> None:
    for name in ("rank_0.log", "rank_1.log"):
        (folder / name).write_text(LOG)
    (folder / "core.812").write_bytes(Path(sys.executable).read_bytes()[:9000])
    (log,) = find_inputs([str(folder)])
    assert [path.name for path in log.files] == ["rank_0.log", "rank_1.log"]


def test_empty_logs_are_said_to_be_empty(folder: Path) -> None:
    (folder / "a.log").write_text("")
    (found,) = answer([str(folder / "a.log")])
    assert isinstance(found, Diagnosis)
    assert found.evidence == ["the logs hold no line"] and "quoted" not in found.mitigation


def test_a_damaged_file_beside_a_log_takes_nothing_from_it(folder: Path) -> None:
    (folder / "rank_0.log").write_text(LOG)
    (folder / "rank_1.log.gz").write_bytes(b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 100_000)
    ended = _run("--json", str(folder))
    (found,) = _found(ended)
    assert ended.returncode == 2 and "rank_1.log.gz" in ended.stderr
    assert (found["class"], found["lines"] >= 4, found["kept_lines"] >= 3) == (
        "KeyError",
        True,
        True,
    )
    assert any("rank_1.log.gz" in quote for quote in found["evidence"])
    assert _run("--confirm", str(folder / "rank_0.log"), "ArgumentError").returncode == 0


def test_the_records_of_ranks_are_their_logs(folder: Path) -> None:
    for rank in range(2):
        text = json.dumps({"message": "torch.OutOfMemoryError: CUDA out of memory."}) + "\n"
        (folder / f"rank_{rank}.jsonl").write_text(text)
    (folder / "metrics.jsonl").write_text("{}\n")
    (found,) = _found(_run("--json", str(folder)))
    assert found["class"] == "OutOfMemoryError"


def test_a_folder_whose_name_is_no_number_to_count_with_is_a_folder(folder: Path) -> None:
    odd = folder / "\u00b2"
    odd.mkdir()
    (odd / "attempt.json").write_text("{}")
    (odd / "a.log").write_text(LOG)
    assert _found(_run("--json", str(odd)))[0]["class"] == "KeyError"
