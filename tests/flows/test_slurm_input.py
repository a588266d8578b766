"""A cluster that cannot be used as the config says: one sentence, exit code 2, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import SiteError
from configs.load import load_config
from configs.rundir import RunDir
from flows.session import tracked
from flows.site import check_site
from tests.flows.helpers import overland, tiny_config
from tests.flows.test_bad_input import refused

NOBODY = "http://127.0.0.1:9"


def slurm_config(folder: Path, token_file: Path) -> Path:
    slurm = {"url": NOBODY, "token_file": str(token_file), "patience_s": 0.1}
    return tiny_config(folder, launcher={"kind": "slurm", "slurm": slurm})


def token(folder: Path) -> Path:
    path = folder / "token"
    path.touch(0o600)
    path.write_text("a.b.c")
    return path


@pytest.mark.parametrize("command", ["run", "pretrain", "nodecheck"])
def test_a_token_file_that_is_a_folder(tmp_path: Path, command: str) -> None:
    config = slurm_config(tmp_path, tmp_path)
    refused(overland(command, config), f"{tmp_path} is a folder: name a file that holds a token")
    assert not (tmp_path / "run").exists()


def test_a_server_that_nobody_has_started(tmp_path: Path) -> None:
    done = overland("pretrain", slurm_config(tmp_path, token(tmp_path)))
    refused(done, f"slurmrestd at {NOBODY} cannot be reached: Connection refused", "no job was")
    assert "Errno" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_preparing_data_needs_no_cluster(tmp_path: Path) -> None:
    config = load_config(slurm_config(tmp_path, token(tmp_path)))
    check_site(config, "prepare")
    with pytest.raises(SiteError):
        check_site(config, "prepare", "pretrain")


def test_what_was_not_begun_has_no_summary(tmp_path: Path) -> None:
    config = load_config(slurm_config(tmp_path, token(tmp_path)))
    run = RunDir(config.resolved_run_dir())
    run.path.mkdir()
    with pytest.raises(SiteError), tracked(run, config):
        raise SiteError("the first job was refused")
    assert not run.summary_path.exists()
    run.attempt(1).path.mkdir(parents=True)
    with pytest.raises(SiteError), tracked(run, config):
        raise SiteError("a later one")
    assert run.summary_path.exists()
