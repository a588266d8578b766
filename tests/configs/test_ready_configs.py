"""The YAML files that come with Overland are valid, fit together, and are what their names say."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.checks import check_config, check_launchable
from configs.load import dump_config, load_config
from configs.memory import GIB, estimate_memory
from configs.shapes import count_parameters, padded_vocab_size

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_all_sizes_are_there() -> None:
    assert {"quickstart", "node8", "llama7b", "llama123b"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_is_valid_and_fits_together(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    check_config(config)
    assert config.name == path.stem
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_config(config))
    assert load_config(copy) == config


@pytest.mark.parametrize(
    ("name", "billions", "gpus"),
    [("node8", (1.2, 1.4), 8), ("llama7b", (6.5, 7.5), 64), ("llama123b", (118, 128), 1024)],
)
def test_large_config_has_its_size_and_fits_its_gpus(
    name: str, billions: tuple[float, float], gpus: int
) -> None:
    config = load_config(FOLDER / f"{name}.yaml")
    vocab = padded_vocab_size(config.data.tokenizer.vocab_size)
    assert billions[0] <= count_parameters(config.model, vocab) / 1e9 <= billions[1]
    assert config.parallel.world_size == gpus
    assert config.launcher.gpu_memory_gib == 80
    assert 0.3 * 80 < estimate_memory(config).total / GIB < 0.92 * 80


def test_123b_scales_to_2048_gpus_as_its_comment_says() -> None:
    overrides = ["launcher.nodes=256", "parallel.data=64", "train.global_batch_size=2048"]
    comment = " ".join(overrides)
    path = FOLDER / "llama123b.yaml"
    assert comment in path.read_text()
    config = load_config(path, overrides)
    check_config(config)
    assert config.parallel.world_size == 2048


def test_one_node_is_launchable() -> None:
    check_launchable(load_config(FOLDER / "quickstart.yaml"))
    check_launchable(load_config(FOLDER / "node8.yaml"))
