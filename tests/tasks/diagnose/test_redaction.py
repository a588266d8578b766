"""Redaction: secrets of many makers go, what a diagnosis needs stays, nothing takes long."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.diagnose.cases import packaged_cases
from tasks.diagnose.filter_rules import FilterRules
from tasks.diagnose.log_agent import segments
from tasks.diagnose.logs import LogLine, split_prefix
from tasks.diagnose.model_prompts import Excerpt
from tasks.diagnose.redact import redact

# Made up, in the shape of the real ones; joined here so that no scanner takes them for leaked keys.
BODY = "q7Rk2ZpX9mWv4TbN8sLd3HfJ6yGc5AeU1oQi0B"
HEX = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
SECRETS = [
    "AKIA" + "Z7Q2M4N6P3R5T7V2",
    "AIza" + BODY[:35],
    "ghp_" + BODY[:36],
    "github_pat_" + BODY,
    "glpat-" + BODY[:20],
    "hf_" + BODY[:34],
    "sk-proj-" + BODY,
    "sk-ant-api03-" + BODY,
    "nvapi-" + BODY,
    "gsk_" + BODY,
    "xoxb-" + "2048-4096-" + BODY[:24],
    "sk_live_" + BODY[:24],
    "SG." + BODY[:22] + "." + BODY[:22],
    "dapi" + HEX,
    "dckr_pat_" + BODY[:27],
    "npm_" + BODY[:36],
    "pypi-AgEI" + BODY,
    "dop_v1_" + HEX + HEX,
    "glsa_" + BODY,
    "hvs." + BODY,
    "tskey-auth-" + BODY[:20],
    "LTAI" + BODY[:16],
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + BODY,
]
IN_PLACE = [
    ("WANDB_API_KEY={}", HEX),
    ("export HF_TOKEN={}", BODY),
    ("password: '{}'", "hunter2"),
    ('{{"db_password": "{}", "port": 5432}}', "correct horse"),
    ("aws_secret_access_key = {}", BODY + "/+" + "x2"),
    ("mysql --user me --password {} -h db", "hunter2"),
    ("curl -u me:{} https://host/x", "hunter2"),
    ("Authorization: Bearer {}", BODY),
    ("'authorization': 'Basic {}'", "bWU6aHVudGVyMg=="),
    ("x-api-key: {}", BODY),
    ("Set-Cookie: session={}; Path=/", BODY),
    ("cloning https://me:{}@git.example.org/a.git", "hunter2"),
    ("postgresql://me:p@{}@db:5432/x refused", "hunter2"),
    (
        "GET https://b.s3.amazonaws.com/k?X-Amz-Date=2025&X-Amz-Signature={}&X-Amz-Expires=60",
        HEX + HEX,
    ),
    ("https://acc.blob.core.windows.net/c/f?sv=2024&sig={}&se=2026 404", BODY),
    ("https://storage.googleapis.com/b/o?GoogleAccessId=me&Signature={}", BODY),
    ("https://api.example.org/v1?api_key={}", BODY),
    ("DefaultEndpointsProtocol=https;AccountKey={};EndpointSuffix=x", BODY + BODY + "=="),
    ("token={} rejected", BODY),
    ("wandb login {}", HEX + "01234567"),
    ("mail to {} bounced", "jane.doe+runs@example.co.uk"),
    ("FileNotFoundError: '/home/{}/data/train.bin'", "jdoe42"),
    (r"C:\Users\{}\data", "jdoe42"),
    ("Connect to {}<29500> failed", "8.8.4.4"),
    ("the password is {}, keep it", "hunter2"),
    ("Your new password is: {}", "swordfish"),
    ("password for user jane was {}", "hunter2"),
    ("the API key is {}.", BODY),
    ("Passwort: {}", "hunter2"),
    ("Das Passwort lautet {}", "geheim7"),
    ("Kennwort={}", "geheim7"),
    ("mot de passe : {}", "azerty12"),
    ("contraseña: {}", "clave99"),
    ("s3: access_key=x secret_key='{}'", "lab-minio-2026"),
    ("secretKey={} endpoint=minio", "lab-minio-2026"),
    ("django.SECRET_KEY = '{}'", "lab-minio-2026"),
    ('os.environ["API_TOKEN"]="{}"', "lab-9f8e7d"),
    ("setenv GITHUB_TOKEN {}", "lab-9f8e7d"),
    ("wandb.login(key='{}')", HEX + "01234567"),
    ("wandb.login(relogin=True, key='{}')", "lab-9f8e7d"),
    ("api: key={}", HEX + "01234567"),
    ("wandb_key='{}'", "lab-9f8e7d"),
    ("mysql -u root -p{} -h db", "hunter2"),
    ("PRIVATE-TOKEN: {}", "lab-9f8e7d"),
    ("<user>me</user><password>{}</password>", "hunter2"),
    ("db.password\t{}", "hunter2"),
    ("[password] {}", "hunter2"),
    ('{{"token":"{}"}}', "lab9f8e7dx"),
    ("header: jwt={} expired", "lab9f8e7dx"),
    ("session_id={} gone", "lab9f8e7dx"),
    ("posted to https://hooks.example.com/services/{}", HEX),
    ("posted to https://chat.example.com/api/webhooks/{}", HEX),
    ("open /data/users/{}/run7/train.bin", "jdoe42"),
    ("/scratch/users/{}: quota exceeded", "jdoe42"),
    ("login as {}", "jdoe42"),
    ("wandb: Currently logged in as: {} (lab)", "jdoe42"),
    ("password={}", "$ecretPa55word"),
    ("HF_TOKEN={}", "$abc123def"),
    ("--token {} --verbose", "$tok3nvalue99"),
    ("the password is {}", "%up3rsecret"),
    ("password: {}", "{hunter2"),
    ("postgres://me:{}@db:5432/x refused", "p/ss7"),
    ("AWS_SECRET_ACCESS_KEY {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("passphrase: {}", "correct horse battery staple"),
    ("key_passphrase={}; cipher=aes", "correct horse battery"),
    ("uid=1001({}) gid=100(users)", "jdoe42"),
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "key {} was refused", "'{}',", "x={};y=1", "https://h/p/{}"]
)
def test_vendors_keys_go_wherever_they_stand(secret: str, around: str) -> None:
    shown = redact(around.format(secret))
    assert secret not in shown
    assert secret[-12:] not in shown
    assert "<" in shown


@pytest.mark.parametrize(("around", "secret"), IN_PLACE)
def test_secrets_go_by_what_stands_before_them(around: str, secret: str) -> None:
    line = around.format(secret)
    shown = redact(line)
    assert secret not in shown
    assert shown.split()[0].rstrip("'")[:5] == line.split()[0].rstrip("'")[:5], "the rest stays"


def test_private_keys_go_as_a_block_even_when_cut_off() -> None:
    block = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
    assert redact(f"before\n{block}\nafter") == "before\n<private-key>\nafter"
    assert "b3Blbn" not in redact(block.partition("-----END")[0])


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "2025-05-14T13:25:21.798232065Z stderr F "])
def test_a_private_key_goes_line_by_line_as_a_log_holds_it(prefix: str) -> None:
    rng = random.Random(5)
    alphabet = string.ascii_letters + string.digits + "+/"
    pieces = ["".join(rng.choices(alphabet, k=64)) for _ in range(25)] + ["Qm9vYmFy7g=="]
    text = ["-----BEGIN PRIVATE KEY-----", *pieces, "-----END PRIVATE KEY-----"]
    texts = [*(prefix + line for line in [*text, "KeyError: 'lr'"]), "1: shard opened"]
    lines = [
        LogLine("x.log", number, *_rank_first(line)) for number, line in enumerate(texts, start=1)
    ]
    for shown in (str(Excerpt(lines, 50_000)), "\n".join(*segments(lines, FilterRules([])))):
        assert not [piece for piece in pieces if piece[:12] in shown]
        assert "shard opened" in shown
    assert "KeyError: 'lr'" in str(Excerpt(lines, 50_000))
    assert not [piece for piece in pieces[:-1] if piece in redact("\n".join(texts[1:26]))]


def _rank_first(text: str) -> tuple[int | None, str, str]:
    rank, body = split_prefix(text)
    return rank, text, body


@pytest.mark.parametrize(
    "line",
    [
        "/opt/conda/envs/train/lib/python311/sitepackages/torch/nn/modules/module12345",
        "step 100 loss 2.31 tokens/s 118034 tokens: 4096",
        "pad_token: <pad> eos_token_id: 2 bos_token: 1 tokenizer: /data/tok.json",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:2251, NCCL version 2.21.5",
        "undefined symbol: _ZN3c104cuda20getCurrentCUDAStreamEa12345_ZN5torch8autogradE",
        "NCCL WARN socketStartConnect: Connect to 172.17.0.1<41211> failed : No route to host",
        "Connection closed by peer [10.0.4.17]:33921 on gpu-0404.cluster",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b checked out",
        "nvidia-cublas-cu12==12.4.5.8 driver 550.54.15.01",
        "KeyError: 'password'",
        "sort_key=length cache_key: step_100 monkey=3 num_key_value_heads: 8",
        "token=hello unk_token: <unk> session_id=main key: value",
        "password: None, api_key: null, secret=***",
        "huggingface/tokenizers: The current process just got forked",
        "assert token == expected_token",
        "the password is incorrect",
        "FATAL: password is required: none was given",
        "ERROR: the secret is not set, the api key is invalid.",
        "Das Passwort ist falsch",
        "PermissionError: [Errno 13] Permission denied: '/shared/ckpt/run7/latest'",
    ],
)
def test_what_a_diagnosis_needs_stays(line: str) -> None:
    assert redact(line) == line


def test_the_root_causes_of_all_cases_stay_readable() -> None:
    changed = {case.id for case in packaged_cases() if redact(case.root) != case.root}
    assert changed <= {"file-missing-config", "permission-exec"}, "those name a home folder"


def test_the_same_text_has_the_same_placeholders() -> None:
    text = "\n".join(around.format(secret) for around, secret in IN_PLACE)
    assert redact(text) == redact(text)
    assert redact(text).count("\n") == text.count("\n"), "line numbers stay"


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_any_text_is_redacted_and_twice_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


_WORDS = st.text(string.ascii_letters + string.digits, min_size=12, max_size=40).filter(
    lambda word: sum(c.isdigit() for c in word) >= 4 and any(c.isalpha() for c in word)
)


@given(
    name=st.sampled_from(["password", "API_KEY", "client-secret", "HF_TOKEN", "x.access_token"]),
    joint=st.sampled_from(["=", ": ", " = ", '": "', "': '"]),
    secret=_WORDS,
    noise=st.text(string.ascii_lowercase + " ", max_size=30),
)
def test_no_secret_behind_a_telling_name_is_left(
    name: str, joint: str, secret: str, noise: str
) -> None:
    assert secret not in redact(f"{noise} {name}{joint}{secret} {noise}")


@given(user=st.text(string.ascii_lowercase + string.digits, min_size=8, max_size=12))
def test_no_users_name_is_left_in_home_folders(user: str) -> None:
    assert user not in redact(
        f"open('/home/{user}/run/a.py') and /Users/{user}/b, ssh {user}@x.org"
    )


@pytest.mark.parametrize(
    "piece", ["a", "a@", "a.", "://", "password=", "/home/", "-", "eyJ", "?sig=", '"', "key "]
)
def test_hostile_repetition_is_no_trouble(piece: str) -> None:
    redact(piece * (200_000 // len(piece)))  # minutes or a RecursionError, were it not linear


def test_whole_logs_keep_their_lines(tmp_path: Path) -> None:
    written = sorted((Path(__file__).parent / "cases").rglob("*.log"))
    assert written
    lines = changed = 0
    for path in written:
        text = path.read_text(encoding="utf-8", errors="replace")
        shown = redact(text)
        assert shown.count("\n") == text.count("\n")
        pairs = list(zip(text.split("\n"), shown.split("\n"), strict=True))
        lines += len(pairs)
        changed += sum(a != b for a, b in pairs)
    assert changed < lines / 50  # Nearly all of them hold somebody's home folder.


@pytest.mark.parametrize("at", range(340, 385, 3))
def test_what_a_cut_parts_from_its_name_is_not_quoted(at: int) -> None:
    """A quote of a long line loses its middle, and the words beside the cut: a piece of a key is known by nothing."""
    secret = "hunter2" * 4
    text = (
        "x" * at + f" password={secret} " + "flag " * 40 + f"password={secret} " + "y" * (at // 3)
    )
    line = LogLine("a.log", 1, None, text, text)
    assert secret[-6:] not in redact(line.quote)


@pytest.mark.parametrize(
    "value", ["$TOKEN", "${TOKEN}", "{token}", "<token>", "%s", "%(token)s", "{{ x }}"]
)
def test_what_stands_for_a_value_is_none(value: str) -> None:
    assert redact(f"password={value}") == f"password={value}"
