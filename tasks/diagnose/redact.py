"""Takes secrets and personal names out of log text, before it is stored as a case or leaves the machine.

What is replaced by a placeholder: keys and tokens of known vendors, values behind names like
`password`, credentials and signatures in addresses, private keys, e-mail addresses, the user's name
in home folders, public IP addresses. What stays, because diagnoses need it: host names, and private
IP addresses, which lead nowhere from outside and tell a cluster's network from docker0.

The same text gives the same placeholders, and redacting twice changes nothing. Linear in the text:
every expression is RE2's.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from tasks.diagnose.patterns import Match, Pattern, PatternSet, compile_pattern
from tasks.diagnose.secret_shapes import (
    ASSIGNMENTS,
    LONE_ASSIGNMENT,
    PRIVATE_KEY_BLOCK,
    PROSE,
    QUERY_VALUES,
    URL_CREDENTIALS,
    VENDOR_KEYS,
)

_EMAIL = r"\b[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,24}\b"
_HOME = r"(?P<keep>(?:/home|/Users|/homes|/u|(?:/[\w.-]+){0,3}/users?|\b[A-Za-z]:\\+Users)[/\\]+)(?P<secret>[^/\\\s\"':,;()<>\[\]]+)"
_USER_NAME = r"(?P<keep>\b(?:USER|LOGNAME|USERNAME|SUDO_USER|SLURM_JOB_USER)\s?=\s?[\"']?)(?P<secret>[\w.-]+)"
_ACCOUNT = r"(?i)(?P<keep>\buid=\d+\(|\blog(?:ged )?in as:? (?:user )?)(?P<secret>[\w.-]+)"
_LONG_WORD = r"[A-Za-z0-9+_=]{40,}"
_KEY_LINE = r"(?P<keep>^|[\s:|])(?P<secret>[A-Za-z0-9+/]{60,}={0,2})$"
"""How private keys and certificates stand in files: a log may hold such a line without the first."""
_IPV4 = r"(?P<keep>^|[^\w.=-])(?P<secret>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b"

_NOT_SECRETS = """
none null nil true false yes no on off empty unset undefined str string int required optional is not was in
for and
"""
_NOT_SECRET = frozenset(_NOT_SECRETS.split())
_SAID_OF_SECRETS = """
a an the not no never too only also still already being now correct incorrect wrong right invalid valid required
missing empty unset set given expired needed used unused stored shared read sent requested accepted rejected refused
denied weak short long strong blank absent available unavailable unknown wanted hidden masked redacted encrypted hashed
disabled enabled optional mandatory deprecated default changed unchanged reset protected different same ok okay
falsch richtig leer nicht kein ungültig gültig abgelaufen erforderlich nötig zu incorrecte invalide requis vide
incorrecta inválida requerida vacía
"""
"""Words that follow `the password is`, in place of one."""
_SAID_OF_SECRET = _NOT_SECRET | frozenset(_SAID_OF_SECRETS.split())
_LEAST_RANDOM_BITS = 4.2
_LEAST_BITS_OF_KEY_LINE = 4.6
"""Paths, which hold slashes too, have fewer."""
_LEAST_RANDOM_DIGITS = 4

_MAX_LINES_OF_KEY = 200

_Replace = Callable[[Match], str]


def redact(text: str) -> str:
    """The text with placeholders for what must not leave."""
    if "PRIVATE KEY" in text:
        text = compile_pattern(PRIVATE_KEY_BLOCK).sub("<private-key>", text)
    return "\n".join(_redact_line(line) for line in text.split("\n"))


class PrivateKeys:
    """Follows the lines of a log: a private key goes over many, of which only the first names it."""

    def __init__(self) -> None:
        self._lines_left = 0

    def holds(self, line: str) -> bool:
        """Whether the line is a piece of a key that began before it."""
        if "PRIVATE KEY" in line and "-----BEGIN" in line:
            self._lines_left = 0 if "-----END" in line else _MAX_LINES_OF_KEY
            return False  # what follows the mark goes with it
        if self._lines_left == 0:
            return False
        self._lines_left -= 1
        if "-----END" in line:
            self._lines_left = 0
            return True
        words = line.split()
        # Another rank's line may stand between; a key's own has at most a stamp before it.
        return bool(words) and len(words) <= 2 and _base64().match(words[-1]) is not None


@lru_cache(maxsize=1)
def _base64() -> Pattern:
    return compile_pattern(r"^[A-Za-z0-9+/]+={0,2}$")


def _redact_line(line: str) -> str:
    patterns, found_in = _patterns()
    for index in found_in.all(line):
        pattern, replace = patterns[index]
        line = pattern.sub(replace, line)
    return line


@lru_cache(maxsize=1)
def _patterns() -> tuple[list[tuple[Pattern, _Replace]], PatternSet]:
    """Every expression with what takes its matches' place, and all in one for a first look."""
    table: list[tuple[str, _Replace]] = [
        (URL_CREDENTIALS, _after_keep("<credentials>@")),
        (QUERY_VALUES, _after_keep("<secret>")),
        *((shape, lambda match: "<key>") for shape in VENDOR_KEYS),
        *((shape, _value) for shape in ASSIGNMENTS),
        (PROSE, _said_value),
        (LONE_ASSIGNMENT, _random_value),
        (_EMAIL, lambda match: "<email>"),
        (_HOME, _after_keep("<user>")),
        (_USER_NAME, _after_keep("<user>")),
        (_ACCOUNT, _after_keep("<user>")),
        (_IPV4, _public_address),
        (_KEY_LINE, _key_line),
        (_LONG_WORD, _random_word),
    ]
    compiled = [(compile_pattern(pattern), replace) for pattern, replace in table]
    return compiled, PatternSet([pattern for pattern, _ in compiled])


def _after_keep(placeholder: str) -> _Replace:
    return lambda match: f"{match['keep']}{placeholder}"


def _value(match: Match) -> str:
    """The value behind a telling name, but for what is none."""
    secret: str = match["secret"]
    quote = secret[0] if secret[0] in "\"'" else ""
    if secret.strip("\"'").lower() in _NOT_SECRET or set(secret) <= set("\"'*.x-"):
        return str(match[0])
    return (
        f"{match['keep']}{quote}<secret>{quote}" if not _is_placeholder(secret) else str(match[0])
    )


def _said_value(match: Match) -> str:
    """What prose says a password is, but for a word about it."""
    word = match["secret"].strip("\"'").rstrip(".!?:").lower()
    return str(match[0]) if word in _SAID_OF_SECRET else _value(match)


def _random_value(match: Match) -> str:
    secret: str = match["secret"]
    return f"{match['keep']}<secret>" if _mixes_kinds(secret, digits=2) else str(match[0])


def _random_word(match: Match) -> str:
    """A long word that looks random: no identifier, hash, or mangled C++ name."""
    word: str = match[0]
    if word.startswith("_Z") or not _mixes_kinds(word) or word.count("_") > len(word) // 12:
        return word
    return "<key>" if _bits_per_character(word) >= _LEAST_RANDOM_BITS else word


def _key_line(match: Match) -> str:
    random = _bits_per_character(match["secret"]) >= _LEAST_BITS_OF_KEY_LINE
    return f"{match['keep']}<key>" if random else str(match[0])


def _public_address(match: Match) -> str:
    try:
        address = ipaddress.ip_address(match["secret"])
    except ValueError:
        return str(match[0])
    return f"{match['keep']}<public-ip>" if address.is_global else str(match[0])


def _is_placeholder(text: str) -> bool:
    return _placeholder().match(text.strip("\"'")) is not None


@lru_cache(maxsize=1)
def _placeholder() -> Pattern:
    """What stands where a value would be put: $NAME, ${name}, <word>, {x}, %s."""
    return compile_pattern(
        r"^(?:\$[A-Z_][A-Z0-9_]*|\$?\{{1,2}[A-Za-z_ .:-]{0,40}\}{0,2}|<[\w .-]{1,40}>?|%(?:\(\w{1,20}\)?)?[sdr]?|\$\(.*)$"
    )


def _mixes_kinds(text: str, digits: int = _LEAST_RANDOM_DIGITS) -> bool:
    there = sum(character.isdigit() for character in text)
    return there >= digits and any(c.isalpha() for c in text)


def _bits_per_character(text: str) -> float:
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
