"""Pickles that could run code are refused before anything unpickles them."""

from __future__ import annotations

import os
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.errors import CheckpointError
from tasks.train.pickles import check_pickle, check_torch_file


class RunsCommand:
    """Unpickling this runs a shell command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_malicious_pickle_is_refused(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "was_run"
    content = pickle.dumps({"weights": RunsCommand(marker)}, protocol=protocol)
    with pytest.raises(CheckpointError, match=r"imports posix\.system"):
        check_pickle(content, ".metadata")
    assert not marker.exists()
    pickle.loads(content)
    assert marker.exists(), "the pickle is as malicious as the test says"


def test_a_malicious_torch_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "common.pt"
    torch.save({"step": 1, "extra": RunsCommand(tmp_path / "was_run")}, path)
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        check_torch_file(path)


def test_what_checkpoints_hold_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "common.pt"
    state = OrderedDict(step=torch.tensor(3.0), betas=(0.9, 0.95), names=["a", "a"], none=None)
    torch.save(state, path)
    check_torch_file(path)
    check_pickle(pickle.dumps({"path": tmp_path, "size": torch.Size([2])}), ".metadata")


def test_a_name_that_is_put_together_on_the_stack_is_refused() -> None:
    # The module's name reaches STACK_GLOBAL by a detour: below it, a string is pushed and dropped.
    content = (
        b"\x80\x04"
        + b"\x8c\x05posix"
        + b"\x8c\x06system"
        + b"\x8c\x0bcollections0"  # pushed and popped again
        + b"\x93."
    )
    assert [op.name for op, _, _ in pickletools.genops(content)][-3:-1] == ["POP", "STACK_GLOBAL"]
    with pytest.raises(CheckpointError, match="hidden"):
        check_pickle(content, ".metadata")


def test_a_memoized_name_is_followed() -> None:
    content = (
        b"\x80\x04"
        + b"\x8c\x05posix\x94"  # memo 0
        + b"\x8c\x06system\x94"  # memo 1
        + b"00"
        + b"h\x00h\x01\x93."  # both back from the memo
    )
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        check_pickle(content, ".metadata")


def test_extension_codes_and_garbage_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="extension"):
        check_pickle(b"\x80\x02\x82\x01.", ".metadata")
    with pytest.raises(CheckpointError, match="broken"):
        check_pickle(b"\x80\x04\x95", ".metadata")
    garbage = tmp_path / "common.pt"
    garbage.write_bytes(b"not a zip file")
    with pytest.raises(CheckpointError, match=r"torch\.save"):
        check_torch_file(garbage)


def test_a_torch_file_with_a_second_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "common.pt"
    torch.save({"step": 1}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", pickle.dumps({}))
    with pytest.raises(CheckpointError, match="2 pickles"):
        check_torch_file(path)
