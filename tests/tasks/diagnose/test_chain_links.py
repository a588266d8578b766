"""Which link of a chain explains the rest, and what repeats, rewords or only follows another error."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.records import Verdict
from tests.tasks.diagnose.one_log import verdict_on

_JOINT = "During handling of the above exception, another exception occurred:"
_CAUSE = "The above exception was the direct cause of the following exception:"
_STEP = "step 7 loss 2.5"


def _chain(tmp_path: Path, *links: str, joint: str = _JOINT, prefix: str = "") -> Verdict:
    lines = [_STEP]
    for number, link in enumerate(links):
        frames, _, raised = link.rpartition("|")
        lines += [f"{prefix}", f"{prefix}{joint}", f"{prefix}"] if number else []
        lines.append(f"{prefix}Traceback (most recent call last):")
        for frame in (frames or "/w/train.py run").split(";"):
            file, _, function = frame.partition(" ")
            lines.append(f'{prefix}  File "{file}", line 3, in {function}')
        lines.append(f"{prefix}{raised}")
    return verdict_on(tmp_path, lines)


@pytest.mark.parametrize(
    "wrapper",
    [
        "AssertionError: hook after_train failed",
        "RuntimeError: conversion failed, see above",
        "RuntimeError: Error in callback on_train_end",
        "TrainerError: an unexpected error occurred while running stage 2. Please check the log above.",
        "ValueError: failed to run hook 'evaluate'",
        "RuntimeError: Evaluation hook failed at epoch 3",
        "RuntimeError: worker 3 failed with exit code 1",
        "TrainError: run aborted due to a previous error",
        "RuntimeError: could not summarise: KeyError: 'AP50'",
        "RuntimeError: summary of bbox: KeyError('AP50')",
    ],
)
def test_what_only_says_that_something_failed_wraps_the_error_before_it(
    tmp_path: Path, wrapper: str
) -> None:
    verdict = _chain(tmp_path, "KeyError: 'AP50'", wrapper)
    assert verdict.failure_class == "KeyError"


@pytest.mark.parametrize(
    ("handled", "raised", "failure_class"),
    [
        ("KeyError: 'adamx'", "ValueError: unknown optimizer 'adamx'", "ValueError"),
        ("KeyError: 'cache'", "FileNotFoundError: [Errno 2] No such file: '/d/a'", "FileNotFoundError"),
        ("KeyError: 'cache'", "AttributeError: 'NoneType' object has no attribute 'get'", "AttributeError"),
        ("ImportError: no fast kernel", "ValueError: head size 96 is not supported", "ValueError"),
    ],
)  # fmt: skip
def test_what_everyday_code_handles_explains_nothing(
    tmp_path: Path, handled: str, raised: str, failure_class: str
) -> None:
    assert _chain(tmp_path, handled, raised).failure_class == failure_class


@pytest.mark.parametrize(
    "after",
    [
        "AttributeError: 'NoneType' object has no attribute 'pytorch'",
        "NameError: name 'te' is not defined",
        "TypeError: 'NoneType' object is not callable",
        "RuntimeError: this model needs the engine: libcudart.so.13: cannot open shared object file: No such file or directory",
    ],
)
def test_what_is_missing_after_a_failed_import_comes_of_it(tmp_path: Path, after: str) -> None:
    before = (
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"
    )
    assert _chain(tmp_path, before, after).failure_class == "ImportError"


_MOVE = "/w/hf.py save;/usr/lib/python3.12/shutil.py move"


def test_a_library_that_tries_another_way_fails_by_that(tmp_path: Path) -> None:
    links = [
        f"{_MOVE}|OSError: [Errno 18] Invalid cross-device link: '/tmp/a' -> '/mnt/b'",
        f"{_MOVE};/usr/lib/python3.12/shutil.py copytree;<frozen os> makedirs|PermissionError: [Errno 13] Permission denied: '/mnt/b'",
    ]
    assert _chain(tmp_path, *links).failure_class == "PermissionError"
    assert _chain(tmp_path, links[0], "RuntimeError: export failed").failure_class == "OSError"


@pytest.mark.parametrize("prefix", ["10.3.1.{}: ", "trainer/{} ", "r{}: ", "E: [tp{}] "])
def test_ranks_that_fail_alike_do_not_announce_each_other(tmp_path: Path, prefix: str) -> None:
    """The first of them counts."""
    lines = [_STEP]
    for rank in (3, 0, 1):
        lines += [
            prefix.format(rank) + line
            for line in (
                "Traceback (most recent call last):",
                '  File "train.py", line 488, in <module>',
                "NameError: name 'val_loss_steps' is not defined. Did you mean: 'val_loss_step'?",
            )
        ]
    verdict = verdict_on(tmp_path, lines)
    assert (verdict.failure_class, verdict.root_cause_line) == ("NameError", 4)


def test_a_line_before_its_traceback_still_announces_it(tmp_path: Path) -> None:
    said = "ValueError: batch size 12 is not divisible by 8 ranks"
    traceback = ["Traceback (most recent call last):", '  File "t.py", line 1, in f', said]
    assert verdict_on(tmp_path, [_STEP, f"trainer: {said}", *traceback]).root_cause_line == 5


def test_running_out_of_files_is_no_mere_end_of_a_helper(tmp_path: Path) -> None:
    thread = (
        '  File "/opt/conda/lib/python3.10/multiprocessing/resource_sharer.py", line 145, in _serve'
    )
    head = [_STEP, "Traceback (most recent call last):", thread]
    after = ["Traceback (most recent call last):", '  File "m.py", line 1, in f', "RuntimeError: received 0 items of ancdata"]  # fmt: skip
    full = verdict_on(tmp_path, [*head, "OSError: [Errno 24] Too many open files", *after])
    assert (full.failure_class, full.root_cause_line) == ("OSError", 4)
    left = verdict_on(tmp_path, [*head, "OSError: [Errno 9] Bad file descriptor", *after])
    assert left.root_cause_line == 7


@pytest.mark.parametrize(
    "said",
    [
        'ImportError: cannot import name "apply_liger" (optional kernel, falling back to eager)',
        "ModuleNotFoundError: No module named 'apex' (optional)",
        "RuntimeError: flash attention needs sm80, falling back to sdpa",
        "OSError: cache is not writable; continuing without",
    ],
)
def test_an_exception_may_say_itself_that_it_does_not_matter(tmp_path: Path, said: str) -> None:
    fatal = "AttributeError: 'Qwen2Config' object has no attribute 'hidden'"
    head = ["Traceback (most recent call last):", '  File "/w/t.py", line 1, in f']
    verdict = verdict_on(
        tmp_path, [*head, said, "loading shard 1/2", "loading shard 2/2", *head, fatal]
    )
    assert verdict.failure_class == "AttributeError"


@pytest.mark.parametrize(
    ("said", "failure_class"),
    [
        ("ValueError: skipping is not supported: set skip=False", "ValueError"),
        ("ValueError: shape (3, 4), expected (3, 5)", "ValueError"),
        ("TypeError: f() got an unexpected argument (optional arguments: 'a', 'b')", "TypeError"),
    ],
)
def test_words_of_setting_aside_may_stand_in_any_message(
    tmp_path: Path, said: str, failure_class: str
) -> None:
    assert _chain(tmp_path, said).failure_class == failure_class


def test_jax_says_twice_that_memory_is_full(tmp_path: Path) -> None:
    lines = [
        _STEP,
        "Traceback (most recent call last):",
        '  File "/app/train_lm.py", line 201, in main',
        "jax._src.traceback_util.UnfilteredStackTrace: jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: ran out",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: ran out",
    ]
    assert verdict_on(tmp_path, lines).failure_class == "OutOfMemoryError"


@pytest.mark.parametrize(
    ("source", "error", "failure_class"),
    [
        ('optimizer.load_state_dict(state_dict["optimizer"])', "KeyError: 'optimizer'", "ModelLoadingError"),
        ('model.load_state_dict(torch.load(path)["model"])', "KeyError: 'model'", "ModelLoadingError"),
        ('sched.load_state_dict(state["lr_scheduler"])', "KeyError: 'lr_scheduler'", "KeyError"),
        ('loss = batch["labels"].sum()', "KeyError: 'labels'", "KeyError"),
        ("model.load_state_dict(old)", "AttributeError: 'dict' object has no attribute 'to'", "AttributeError"),
    ],
)  # fmt: skip
def test_what_was_about_to_be_done_tells_that_weights_were_read(
    tmp_path: Path, source: str, error: str, failure_class: str
) -> None:
    frame = ["Traceback (most recent call last):", '  File "t.py", line 538, in train']
    lines = [_STEP, *frame, f"    {source}", "    ~~~~^^^^", error]
    assert verdict_on(tmp_path, lines).failure_class == failure_class


def test_a_wait_without_a_word_is_explained_by_what_waited(tmp_path: Path) -> None:
    init = "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec."
    verdict = _chain(tmp_path, "TimeoutError", init, joint=_CAUSE)
    assert (verdict.failure_class, verdict.root_cause_line) == ("ConnectionError", 10)
    fetch = "fsspec.exceptions.FSTimeoutError: reading s3://d/a"
    verdict = _chain(tmp_path, "asyncio.exceptions.CancelledError", "TimeoutError", fetch)
    assert verdict.failure_class == "S3StorageError"
    verdict = _chain(tmp_path, "TimeoutError", "RuntimeError: setup failed", joint=_CAUSE)
    assert (verdict.failure_class, verdict.root_cause_line) == ("ConnectionError", 4)


def test_the_systems_own_reason_counts_before_that_a_write_failed(tmp_path: Path) -> None:
    failed = "RuntimeError: [enforce fail at inline_container.cc:815] . PytorchStreamWriter failed writing file data/61: file write failed"
    quota = "OSError: [Errno 122] Disk quota exceeded"
    assert _chain(tmp_path, failed, quota).root_cause_text.endswith(quota)
    assert _chain(tmp_path, quota, failed).root_cause_text.endswith(quota)
    alone = _chain(tmp_path, failed, "RuntimeError: save failed")
    assert alone.root_cause_text.endswith(failed)


_NOTHING = [
    "Traceback (most recent call last):",
    '  File "gpt.py", line 134, in get',
    "AttributeError: 'NoneType' object has no attribute 'sizes'",
]


@pytest.mark.parametrize(
    ("said", "failure_class"),
    [
        ("Dataset does not exist: /data/openwebtext/subset-01", "DatasetLoadingError"),
        ("could not open shard train-00012.tar", "DatasetLoadingError"),
        ("ERROR: unable to read checkpoint /ckpt/step-10", "ModelLoadingError"),
        ("error: failed to load tokenizer.model", "ModelLoadingError"),
        ("config file /w/a.yaml not found", "FileNotFoundError"),
        ("cannot connect to the feature server", "ConnectionError"),
        ("WARNING: checkpoint not found, starting from scratch", "AttributeError"),
        ("cache file not found, building it", "AttributeError"),
        ("error: cannot open /data/idx: Permission denied", "PermissionError"),
        ("apex not importable: libcusparse.so.12: cannot open shared object file", "ImportError"),
        ("no answer found for question 12", "AttributeError"),
    ],
)
def test_what_meets_nothing_comes_of_what_was_missing(
    tmp_path: Path, said: str, failure_class: str
) -> None:
    verdict = verdict_on(tmp_path, ["building data", said, "finished in 0.1 s", *_NOTHING])
    assert verdict.failure_class == failure_class
    assert verdict.root_cause_line == (6 if failure_class == "AttributeError" else 2)


def test_what_was_missing_long_before_explains_nothing(tmp_path: Path) -> None:
    said = "Dataset does not exist: /data/openwebtext/subset-01"
    for between in ([_STEP], [f"note {n}" for n in range(9)]):
        assert verdict_on(tmp_path, [said, *between, *_NOTHING]).failure_class == "AttributeError"
    other = [*_NOTHING[:2], "AttributeError: 'Config' object has no attribute 'sizes'"]
    assert verdict_on(tmp_path, [said, *other]).failure_class == "AttributeError"


@pytest.mark.parametrize(
    ("frames", "error", "failure_class"),
    [
        ("/opt/orbax/checkpoint/checkpoint_manager.py restore", "ValueError: tree structures do not match", "ModelLoadingError"),
        ("/opt/lightning/core/saving.py _load_from_checkpoint", "KeyError: 'version'", "ModelLoadingError"),
        ("/w/t.py restore_checkpoint;/opt/ts.py open", 'ValueError: NOT_FOUND: Error opening "zarr" driver', "ModelLoadingError"),
        ("/opt/keras/src/saving/saving_lib.py load_weights_only", "OSError: truncated file", "ModelLoadingError"),
        ("/w/t.py restore_from_cache_of_rows", "ValueError: bad row", "ValueError"),
    ],
)  # fmt: skip
def test_other_frameworks_read_weights_too(
    tmp_path: Path, frames: str, error: str, failure_class: str
) -> None:
    assert _chain(tmp_path, f"{frames}|{error}").failure_class == failure_class
