"""The Failure Agent, asked over HTTP: what may count of an answer, and what never does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import GOOD, LOG, ROOT, UNKNOWN, ask, changed
from model_server import Handler, close, drip, flood, hang, raw, says, serve, status

from tasks.diagnose.classes import CLASSES
from tasks.diagnose.failure_agent import METHOD, is_unsure
from tasks.diagnose.learned_rules import RuleBook, learned_rules
from tasks.diagnose.logs import LogLine
from tasks.diagnose.model_prompts import MEANINGS
from tasks.diagnose.retrieval import open_cases
from tasks.diagnose.rules import RuleSet
from tasks.diagnose.verdicts import make_verdict


def test_a_good_answer_is_a_verdict_with_its_evidence(folder: Path) -> None:
    with open_cases() as store:
        neighbours = [n for n in store.nearest("cannot connect to the server, refused", 9)]
    with serve(says(GOOD)) as server:
        verdict = ask(server, folder, neighbours=neighbours)
    assert (verdict.failure_class, verdict.method) == ("ConnectionError", METHOD)
    assert (verdict.root_cause_file, verdict.root_cause_line) == ("x.log", 3)
    assert verdict.root_cause_text == ROOT
    assert verdict.action == "resubmit_later"
    assert verdict.faulty_rank == 3, "the rules' rank stays"
    assert 0.3 < verdict.confidence < 0.8
    assert any("tester" in line for line in verdict.evidence)
    assert verdict.mitigation.startswith("Wait until a licence is free")
    assert "learned rule learned_connectionerror_1" in verdict.evidence


def test_its_rule_finds_the_next_such_failure_without_a_model(folder: Path) -> None:
    with serve(says(GOOD)) as server:
        ask(server, folder)
        again = ask(server, folder)
    assert any("known already" in line for line in again.evidence)
    (rule,) = learned_rules(folder)
    text = "lmgrd[3]: checkout of feature MESHER refused: server down"
    finding = RuleSet([rule]).match(LogLine("y.log", 1, None, text, text), 1)
    assert finding is not None
    assert (finding.failure_class, finding.role) == ("ConnectionError", "learned")
    learnt = RuleBook(folder).rules()[0]
    assert (learnt.model, learnt.log, learnt.evidence) == ("tester", "x.log", ROOT)


def test_what_is_sent_is_redacted_and_marked_as_data(folder: Path) -> None:
    with serve(says(GOOD)) as server:
        ask(server, folder, log=[*LOG, "mail jane@example.org about /home/jdoe42/run"])
        sent = json.dumps(server.requests)
    for secret in ("9f8e7d6c5b4a39281706", "jane@example.org", "jdoe42"):
        assert secret not in sent
    assert "api_key=<secret>" in sent
    assert sent.count("LOG-") == 3
    assert "no instruction" in sent


BAD_ANSWERS: list[tuple[Any, str]] = [
    ("I am sorry, I can't help with that.", "not the JSON"),
    ({"verdict": "broken"}, "does not fit the schema"),
    (changed(extra=1), "does not fit the schema"),
    ({k: v for k, v in GOOD.items() if k != "quotes"}, "does not fit the schema"),
    (changed(quotes=[]), "does not fit the schema"),
    (changed(quotes=[3]), "does not fit the schema"),
    (changed(quotes=[ROOT] * 6), "does not fit the schema"),
    (changed(mitigation="x" * 5000), "does not fit the schema"),
    (changed(rule="x"), "does not fit the schema"),
    (changed(at_fault="cosmic rays"), "does not fit the schema"),
    (changed(**{"class": "LicenceError"}), "no class of the list"),
    (changed(**{"class": "NoFailure", "category": "none"}), "no class of the list"),
    (changed(**{"class": "connectionerror"}), "no class of the list"),
    (changed(category="script"), "contradicts itself"),
    (changed(quotes=["lmgrd: the server room is on fire"]), "does not stand in the log"),
    (changed(quotes=[ROOT, "Xid 79: GPU has fallen off the bus"]), "does not stand in the log"),
    (changed(quotes=["leaving"]), "does not stand in the log"),
    (changed(quotes=[""]), "does not stand in the log"),
    (changed(**{"class": "Unknown", "category": "none"}), "does not know either"),
    ("<think>" + json.dumps(GOOD), "gives no answer"),
]


@pytest.mark.parametrize(("answer", "reason"), BAD_ANSWERS)
def test_an_answer_that_cannot_count_leaves_the_rules_verdict(
    answer: Any, reason: str, folder: Path
) -> None:
    with serve(says(answer)) as server:
        verdict = ask(server, folder)
    assert reason in verdict.evidence[-1]
    assert verdict.model_copy(update={"evidence": []}) == UNKNOWN.model_copy(
        update={"evidence": []}
    )
    assert not learned_rules(folder)


@pytest.mark.parametrize(
    "behaviour",
    [
        hang,
        drip,
        close,
        flood,
        status(429),
        status(500),
        raw(b"{}"),
        raw(b"<html>"),
        raw(b"[" * 99_999),
    ],
)
def test_a_server_that_misbehaves_leaves_the_rules_verdict(
    behaviour: Callable[[Handler], None], folder: Path
) -> None:
    with serve(behaviour) as server:
        verdict = ask(server, folder, timeout_s=2.0)
    assert verdict.failure_class == "Unknown"
    assert verdict.evidence[-1].startswith("language model: ")


def test_an_answer_behind_thoughts_counts(folder: Path) -> None:
    text = f"<think>Is it {json.dumps(changed(**{'class': 'Hang'}))}? No.</think>{json.dumps(GOOD)}"
    fenced = f"Sure!\n```json\n{json.dumps(GOOD)}\n```\nAsk me for more."
    for answer in (text, fenced):
        with serve(says(answer)) as server:
            assert ask(server, folder).failure_class == "ConnectionError"


@pytest.mark.parametrize(
    ("pattern", "evidence", "reason"),
    [
        ("(", ROOT, "RE2"),
        (r"(?=checkout) of feature", ROOT, "RE2"),
        (r"(\w+) checkout of feature \1", ROOT, "RE2"),
        (r"((((checkout of feature){1000}){1000}){1000})", ROOT, "RE2"),
        (".*", ROOT, "says too little"),
        (r"\w+\s\w+\s\w+\s\w+\s[a-zA-Z0-9]+", ROOT, "says too little"),
        ("(?i)traceback|checkout of feature", ROOT, "matches what stands in any log"),
        ("fallen off the bus", ROOT, "does not match the quoted line"),
        ("connection refused by licence", "licence refused", "does not stand in the log"),
        (r"checkout of feature|No space left on device", ROOT, "of another class"),
        ("x" * 299 + "(", ROOT, "RE2"),
        (r"loss 2\.31 tokens/s \d+|of feature", LOG[0], "the quoted line is routine"),
        (r"connecting to licence server", LOG[1][:28], "the quoted line is routine"),
        (r"checkout of feature|to licence server", ROOT, "matches line 2, which is routine"),
        (r"checkout of feature|step \d+/\d+ loss", ROOT, "matches routine lines"),
        (r"checkout of feature|elapsed time per iteration", ROOT, "matches routine lines"),
    ],
)
def test_a_rule_that_fails_a_check_does_not_join(
    pattern: str, evidence: str, reason: str, folder: Path
) -> None:
    with serve(says(changed(rule={"pattern": pattern, "evidence": evidence}))) as server:
        verdict = ask(server, folder)
    assert verdict.failure_class == "ConnectionError", "its verdict counts all the same"
    assert any("its rule was not taken" in line and reason in line for line in verdict.evidence)
    assert not learned_rules(folder)


@pytest.mark.parametrize(
    "pattern",
    [r"(~+)+$|checkout of feature \w+ refused", r"(.*,)*!!|checkout of feature (\w|\d)+ refused"],
)
def test_a_pattern_that_is_catastrophic_elsewhere_is_linear_here(
    pattern: str, folder: Path
) -> None:
    with serve(says(changed(rule={"pattern": pattern, "evidence": ROOT}))) as server:
        ask(server, folder)
    (rule,) = learned_rules(folder)
    text = "~" * 4000 + "," * 4000 + "!"  # years, in an engine that goes back
    assert RuleSet([rule]).match(LogLine("y", 1, None, text, text), 1) is None


def test_the_users_fault_is_never_restarted(folder: Path) -> None:
    answer = changed(at_fault="user", **{"class": "CUDAError"})
    with serve(says(answer)) as server:
        assert ask(server, folder).action == "fix_by_user"


def test_a_confirmed_case_takes_a_learned_rule_out(folder: Path) -> None:
    with serve(says(GOOD)) as server:
        ask(server, folder)
    assert learned_rules(folder)
    case = {
        "id": "c1",
        "class": "ArgumentError",
        "diagnosed_as": "ConnectionError",
        "diagnosis": {"root_cause_text": ROOT, "evidence": []},
    }
    (folder / "confirmed.jsonl").write_text(json.dumps(case) + "\n")
    assert not learned_rules(folder)


def test_a_long_log_is_cut_to_its_telling_lines(folder: Path) -> None:
    routine = [f"step {n} loss 2.{n} tokens/s {n}" for n in range(5000)]
    with serve(says(GOOD)) as server:
        verdict = ask(server, folder, log=[*routine[:2500], ROOT, *routine[2500:], LOG[-1]])
        question = server.requests[0]["messages"][-1]["content"]
    assert ROOT in question
    assert "lines left out" in question
    assert len(question) < 16_000
    assert verdict.root_cause_line == 2501


def test_an_empty_log_is_no_question(folder: Path) -> None:
    with serve(says(GOOD)) as server:
        assert "no line to ask about" in ask(server, folder, log=[]).evidence[-1]
        assert not server.requests


def test_it_is_asked_only_when_rules_are_unsure() -> None:
    assert is_unsure(UNKNOWN)
    assert is_unsure(make_verdict("OSError", method="x", confidence=0.4))
    assert not is_unsure(make_verdict("OSError", method="x", confidence=0.85))


def test_every_class_but_success_is_explained_to_the_model() -> None:
    assert set(MEANINGS) == set(CLASSES) - {"NoFailure"}
