"""What can go wrong with Slurm, in sentences."""

from __future__ import annotations

import re

from configs.errors import LaunchError

NO_SUCH_JOB = 2017
ALREADY_DONE = 2021
NOT_NOW = {2015, 2042, 2051, 2068}
"""Numbers that come with a job: it was accepted, and does not start now, or never."""
NOTHING_FOUND = {9003}
"""slurmdbd knows no such job."""
BAD_TOKEN = {1007, 2002, 5005}
CONTROLLER_AWAY = {1800, 1801, 1810}

ASKED_WRONGLY = {
    2001,
    *range(2003, 2007),
    2008,
    2010,
    2012,
    2025,
    2041,
    2044,
    2050,
    2053,
    2069,
    2115,
    2119,
    2123,
}
"""Numbers that blame the request, beside those that we have a sentence for."""
_NO_TLS = "WRONG_VERSION_NUMBER"
"""OpenSSL's name for an answer that is none of TLS's."""
_ERRNO = re.compile(r"\[Errno -?\d+\]")

_SENTENCES = {
    2000: "partition {partition!r} does not exist: the server has {partitions}",
    2014: "no node can ever satisfy it: {nodes} node(s) with {resources} in partition {partition!r}",
    2015: "partition {partition!r} can never give {nodes} node(s) with {resources} for {minutes}",
    2016: "{nodes} nodes are more than partition {partition!r} can ever give",
    2018: "a node that it names does not exist",
    2029: "no node has the features {constraints!r}",
    2038: "the jobs of its dependency {dependency!r} do not exist, or it cannot be understood",
    2045: "account {account!r} does not exist, or user {user!r} is not in it",
    2051: "its time limit of {minutes} is more than partition {partition!r} allows",
    2066: "QOS {qos!r} does not exist, or account and user may not use it",
    2072: "GPUs of this kind ({resources}) do not exist",
}


class SlurmError(LaunchError):
    """The server has refused a request."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


class SlurmUnavailableError(SlurmError):
    """slurmrestd or slurmctld does not answer now; the request may have arrived."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class SlurmTokenError(SlurmError):
    """The token is missing, expired or not accepted."""


class SlurmTokenLapsedError(SlurmTokenError, SlurmUnavailableError):
    """There is no accepted token now, but there was one before: it is waited for, as for the server."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.was_sent = False


class NoSuchJobError(SlurmError):
    """The server does not know the job (any more)."""


def unreachable(url: str, error: Exception) -> SlurmError:
    """No connection: the server is away, or TLS is spoken to one that knows none, which waiting cannot change."""
    if _NO_TLS in str(error):
        return SlurmError(
            f"launcher.slurm.url is {url}, but that server speaks http without TLS: write http://"
        )
    return SlurmUnavailableError(
        f"slurmrestd at {url} cannot be reached: {in_words(error)}", was_sent=False
    )


def is_asked_wrongly(number: int | None) -> bool:
    """Whether the request is to blame: the same one would be refused again."""
    return number in _SENTENCES or number in ASKED_WRONGLY


def refusal(number: int | None, words: str, details: dict[str, object]) -> str:
    """Why a submission was refused, for people; the server's own words where we have none."""
    sentence = _SENTENCES.get(number or 0)
    own = words or f"error {number}"
    return f"{sentence.format(**details)} (Slurm: {own})" if sentence else f"Slurm: {own}"


def in_words(error: Exception) -> str:
    """What the system says is wrong, without its number: `Connection refused`."""
    words = getattr(error, "strerror", None) or _ERRNO.sub("", str(error)).strip()
    return words or type(error).__name__


def seconds(duration_s: float) -> str:
    """For a sentence: `900 s`, `4.2 s`."""
    return f"{duration_s:.0f} s" if duration_s >= 10 else f"{duration_s:.2g} s"
