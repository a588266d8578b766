"""A small typed client of slurmrestd: the few calls that jobs need.

Each call is made once (twice when the token was not accepted); whoever calls decides whether to wait for
a server that is away.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import httpx

from infra.launch.slurm_answers import (
    TEXT_LIMIT,
    any_object,
    errors_in,
    parsed,
    received,
    the_object,
)
from infra.launch.slurm_dialects import OLD_VERSION, VERSIONS, Dialect, is_default, make_dialect
from infra.launch.slurm_errors import (
    ALREADY_DONE,
    BAD_TOKEN,
    CONTROLLER_AWAY,
    NO_SUCH_JOB,
    NOT_NOW,
    NOTHING_FOUND,
    NoSuchJobError,
    SlurmError,
    SlurmTokenError,
    SlurmTokenLapsedError,
    SlurmUnavailableError,
    in_words,
    unreachable,
)
from infra.launch.slurm_token import TokenSource, owner_of
from infra.launch.slurm_types import AccountedJob, JobRequest, SlurmJob, SlurmNode

T = TypeVar("T")

_TIMEOUT_S = 15.0
_READ_TIMEOUT_S = 60.0
"""A busy slurmctld takes its time for all jobs of a large site."""
_SCONTROL_TIMEOUT_S = 60.0
_LATER = {408, 425, 429}
"""What a proxy says that has not handed the request on."""
_NO_JOB = 0
"""A number that no job has."""


class SlurmClient:
    """Speaks the best dialect that the server knows too. May be used by several threads."""

    def __init__(
        self,
        url: str,
        user: str,
        tokens: TokenSource,
        *,
        scontrol: Sequence[str] = ("scontrol",),
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url, self.user = url.rstrip("/"), user
        self._tokens, self._scontrol = tokens, tuple(scontrol)
        # No proxy: a token is for this server alone.
        self._http = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(_TIMEOUT_S, read=_READ_TIMEOUT_S),
            transport=transport,
            trust_env=False,
        )
        self._dialect: Dialect | None = None
        self.has_answered = False
        """Whether it was once found to speak a version that we speak."""
        self._was_accepted = False
        """Whether a token of ours was: then one that fails now may be renewed soon."""

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    @property
    def dialect(self) -> Dialect:
        """The best that both sides speak; asked for once."""
        if self._dialect is None:
            self._dialect = make_dialect(self._with_new_token(self._best_version))
            self.has_answered = True
        return self._dialect

    def _best_version(self) -> str:
        for version in VERSIONS:
            slash = "" if version == OLD_VERSION else "/"
            path = f"/slurm/{version}/ping{slash}"
            response = self._send("GET", path)
            if response.status_code == httpx.codes.NOT_FOUND:
                continue
            self._raise_for_headers(response)
            if response.status_code >= 400:
                self._raise("GET", path, response, errors_in(any_object(response)))
            the_object(f"{self.url}{path}", response)
            return version
        words = (
            f"{self.url} speaks none of the versions {', '.join(reversed(VERSIONS))} of Slurm's REST "
            f"interface: it must be slurmrestd of Slurm 22.05 or 23.11 to 26.05"
        )
        if self.has_answered:  # It did before: that is a proxy whose server is away.
            raise SlurmUnavailableError(words, was_sent=False)
        raise SlurmError(words)

    # --- jobs -------------------------------------------------------------------------------------

    def submit(self, request: JobRequest) -> tuple[int, SlurmError | None]:
        """Number of the new job, and what the server has to say against its ever starting."""
        body = self.dialect.payload(request)
        answer = self._call(
            "POST", f"/slurm/{self.dialect.version}/job/submit", body, allowed=NOT_NOW
        )
        job_id = answer.get("job_id") or (answer.get("result") or {}).get("job_id")
        if not job_id:
            # There may be a job all the same.
            raise SlurmUnavailableError(f"{self.url} gave no job id for {request.name!r}")
        errors = [e for e in errors_in(answer) if e.number not in (None, 0)]
        return int(job_id), errors[0] if errors else None

    def jobs(self) -> list[SlurmJob]:
        """All jobs that the server knows."""
        path = self.dialect.path("jobs")
        return self._parsed(path, "jobs", self._call("GET", path), self.dialect.job)

    def job(self, job_id: int) -> SlurmJob:
        """One job; NoSuchJobError when there is none (any more)."""
        path = self.dialect.item_path("job", str(job_id))
        for job in self._parsed(path, "jobs", self._call("GET", path), self.dialect.job):
            if job.job_id == job_id:
                return job
        raise NoSuchJobError(f"{self.url} knows no job {job_id}", NO_SUCH_JOB)

    def accounted_jobs(self, job_id: int) -> list[AccountedJob]:
        """All jobs that have had the number, as slurmdbd remembers them; SlurmError without slurmdbd."""
        path = f"/slurmdb/{self.dialect.version}/job/{job_id}"
        answer = self._call("GET", path, allowed=NOTHING_FOUND)
        if answer.get("errors"):
            return []
        found = self._parsed(path, "jobs", answer, self.dialect.accounted)
        return [old for old in found if old.job.job_id == job_id]

    def cancel(self, job_id: int) -> None:
        """Have it ended: SIGTERM, and after the site's KillWait SIGKILL. One that has ended is left."""
        path = self.dialect.item_path("job", str(job_id))
        answer = self._call("DELETE", path, allowed={ALREADY_DONE, NO_SUCH_JOB})
        for status in answer.get("status") or []:
            error = status.get("error") or {}
            if error.get("code") not in (None, 0, ALREADY_DONE, NO_SUCH_JOB):
                words = error.get("message") or error.get("string") or "refused"
                raise SlurmError(f"job {job_id} cannot be cancelled: {words}", error["code"])

    # --- nodes and partitions ---------------------------------------------------------------------

    def nodes(self) -> list[SlurmNode]:
        """All nodes."""
        path = self.dialect.path("nodes")
        return self._parsed(path, "nodes", self._call("GET", path), self.dialect.node)

    def partitions(self) -> list[str]:
        """Names of all partitions."""
        path = self.dialect.path("partitions")
        answer = self._call("GET", path)
        return self._parsed(path, "partitions", answer, lambda value: str(value["name"]))

    def default_partitions(self) -> list[str]:
        """Where jobs go that name no partition; empty where the server does not say."""
        path = self.dialect.path("partitions")
        answer = self._call("GET", path)
        found = self._parsed(path, "partitions", answer, lambda v: (str(v["name"]), is_default(v)))
        return [name for name, default in found if default]

    def drain(self, node: str, reason: str) -> None:
        """Start no more jobs on the node; those that run there go on."""
        if self.dialect.can_drain:
            body = {"state": ["DRAIN"], "reason": reason}
            self._call("POST", self.dialect.item_path("node", node), body)
            return
        arguments = ("update", f"nodename={node}", "state=drain", f"reason={reason}")
        self._run_scontrol(*arguments)

    def _run_scontrol(self, *arguments: str) -> None:
        program = self._scontrol[0]
        try:
            done = subprocess.run(
                [*self._scontrol, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SCONTROL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"{program} does not end within {_SCONTROL_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise SlurmError(f"{program} cannot be run: {in_words(error)}") from error
        if done.returncode:
            raise SlurmError(f"{program} {arguments[0]}: {(done.stderr or done.stdout).strip()}")

    # --- one call ---------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        allowed: set[int] | frozenset[int] = frozenset(),
    ) -> dict[str, Any]:
        """The answer; errors whose number is `allowed` are left to the caller."""
        answer = self._with_new_token(lambda: self._call_once(method, path, body, allowed))
        self._was_accepted = True
        return answer

    def _with_new_token(self, ask: Callable[[], T]) -> T:
        """What `ask` returns, if need be with a token that was read again."""
        try:
            try:
                return ask()
            except SlurmTokenError:
                self._tokens.forget()
                return ask()
        except SlurmTokenError as error:
            if self._was_accepted:
                raise SlurmTokenLapsedError(str(error)) from error
            raise

    def _call_once(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        allowed: set[int] | frozenset[int],
    ) -> dict[str, Any]:
        response = self._send(method, path, body)
        self._raise_for_headers(response)
        is_success = response.status_code < 400
        where = f"{self.url}{path}"
        answer = the_object(where, response) if is_success else any_object(response)
        errors = [e for e in errors_in(answer) if e.number not in allowed]
        if not errors and is_success:
            return answer
        if not errors and answer.get("errors"):
            return answer
        self._raise(method, path, response, errors)

    def _parsed(
        self, path: str, key: str, answer: dict[str, Any], parse: Callable[[dict[str, Any]], T]
    ) -> list[T]:
        return parsed(f"{self.url}{path}", key, answer, parse)

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        token = self._tokens.token()
        headers = {"X-SLURM-USER-NAME": self.user, "X-SLURM-USER-TOKEN": token}
        try:
            with self._http.stream(method, path, json=body, headers=headers) as response:
                return received(response, secret=token, timeout_s=_READ_TIMEOUT_S)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise unreachable(self.url, error) from error
        except httpx.RequestError as error:
            raise SlurmUnavailableError(f"slurmrestd at {self.url}: {in_words(error)}") from error

    @property
    def token_owner(self) -> str | None:
        """Whose token it says that it is. SlurmTokenError when there is none."""
        return owner_of(self._tokens.token())

    def _raise_for_headers(self, response: httpx.Response) -> None:
        if response.status_code in (401, 403, 511):
            raise self._token_error()

    def _raise(
        self, method: str, path: str, response: httpx.Response, errors: list[SlurmError]
    ) -> NoReturn:
        numbers = {error.number for error in errors}
        words = "; ".join(dict.fromkeys(str(error) for error in errors))
        words = words or response.text[:TEXT_LIMIT].strip()
        if numbers & BAD_TOKEN:
            raise self._token_error()
        if numbers & CONTROLLER_AWAY:
            raise SlurmUnavailableError(f"slurmctld behind {self.url} is away: {words}")
        if NO_SUCH_JOB in numbers:
            raise NoSuchJobError(words, NO_SUCH_JOB)
        if (
            response.status_code == httpx.codes.NOT_FOUND
            and not errors
            and path.startswith("/slurm/")
        ):
            self._dialect = None  # Another version is up by now, or a proxy answers alone.
            raise SlurmUnavailableError(f"{self.url} does not know {path}", was_sent=False)
        if response.status_code in _LATER:
            raise SlurmUnavailableError(f"{self.url} answers {response.status_code}: {words}")
        if response.status_code >= 500 and not any(n for n in numbers if n and n > 0):
            if method == "GET" and f"/{OLD_VERSION}/" in path:
                self._raise_for_token()
            raise SlurmUnavailableError(f"{self.url} answers {response.status_code}: {words}")
        known = next((error.number for error in errors if error.number and error.number > 0), None)
        raise SlurmError(words or f"HTTP {response.status_code}", known)

    def _raise_for_token(self) -> None:
        """v0.0.38 answers a GET alike when the token is wrong and when slurmctld is away; not so a
        DELETE, which is harmless without such a job."""
        response = self._send("DELETE", f"/slurm/{OLD_VERSION}/job/{_NO_JOB}")
        if {error.number for error in errors_in(any_object(response))} & BAD_TOKEN:
            raise self._token_error()

    def _token_error(self) -> SlurmTokenError:
        return SlurmTokenError(
            f"{self.url} does not accept the token of {self._tokens.where} for user {self.user!r}: get a "
            "new one with `scontrol token lifespan=86400`, on this cluster, for this user"
        )
